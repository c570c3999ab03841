// The worker's options, as its command line and configuration give them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "freeride/base/paths.hpp"
#include "freeride/base/result.hpp"
#include "freeride/policy/ended_folders.hpp"
#include "freeride/policy/lease.hpp"
#include "freeride/policy/probe.hpp"
#include "sandbox/sandbox.hpp"
#include "tasks/launch.hpp"

namespace freeride::worker {

struct Options : SideTaskOptions {
  Paths paths = Paths::defaults();
  std::string host_id;     ///< empty: base's host_id()
  std::string drop_dir;    ///< empty: paths.drop_dir()
  SandboxOptions sandbox;  ///< its runner empty: beside this program, else on the PATH
  policy::LeaseOrder lease_order = policy::LeaseOrder::kRoundRobin;
  int64_t init_ms = 30'000;
  int64_t settle_ms = 10'000;  ///< after the start, without idle and profile leases
  int64_t memory_bytes = 0;    ///< of the device, for side tasks; 0: what the host has
  std::string mps_control;     ///< empty: nvidia-cuda-mps-control on the PATH
  int64_t reserve_bytes = 0;   ///< of a GPU, for training to grow into; 0: 5 %, at least 2 GiB
  int64_t keep_bytes = policy::KeepLimits{}.bytes;
  int64_t probe_one_in = policy::ProbeLimits{}.one_in;  ///< of a GPU's bubbles, so many are probed; 0: none
  int thread_pct = 100;                                 ///< of a GPU's multiprocessors, for one side task
};

/// "0,2-3" → {0, 2, 3}. Errors: kInvalidArgument (no such list, or a core that this process may not use).
Result<std::vector<int>> parse_cores(const std::string& text);

/// Whether process `pid` may run on one of `cores` of a CPU device; empty: on any. Errors: kPermission (it may not, or
/// there is no such process).
Status check_process_on(pid_t pid, const std::vector<int>& cores);

/// A device's name becomes part of a socket's name. Errors: kInvalidArgument.
Status check_device(const std::string& device);

/// Where freeride-runner is: `given`, else beside this program, else on the PATH. Errors: kNotFound, saying where it
/// was looked for.
Result<std::string> find_runner(const std::string& given);

/// What gates programs on a GPU: `given`, else libfreeride_shim.so beside this program or in the lib folder next to it.
/// "": there is none. Errors: kNotFound (`given` is not there).
Result<std::string> find_shim(const std::string& given);
/// Where libcuda.so.1 is in the system's library folders and in `folders`: files without links, each once.
std::vector<std::string> find_drivers(const std::vector<std::string>& folders);

}  // namespace freeride::worker
