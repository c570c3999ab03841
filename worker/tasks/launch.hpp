// Launch: what a side task's processes are started with: folder, pages, descriptors, arguments.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "acting/task_source.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/ended_folders.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// What of the worker's options concerns a task.
struct SideTaskOptions {
  std::string device;                     ///< "cpu-N" or a GPU's UUID
  std::vector<int> cores;                 ///< empty: all
  int64_t host_memory_bytes = 8ll << 30;  ///< of a GPU's task; on a CPU device the task's own limit counts
  int64_t grace_ms = 100, hang_ms = 5000;
  int64_t create_ms = 60'000;                               ///< for loading and CreateSideTask
  int64_t profile_ms = 30'000;                              ///< for a profile's steps
  int64_t keep_days = policy::KeepLimits{}.age_s / 86'400;  ///< of what ended tasks have left
  int64_t stop_ms = 15'000;  ///< for StopSideTask as seen from here; the supervisor's own bound is shorter

  std::string shim;                  ///< what gates programs on a GPU; empty: there is none, and none are run
  std::vector<std::string> drivers;  ///< see ShimGrant
  std::filesystem::path pages_dir;   ///< for pages that programs open by their names

  bool cpu_device() const { return device.rfind("cpu-", 0) == 0; }
};

struct LaunchRequest {
  uint64_t id = 0;
  const bus::CreateTask& spec;
  const SideTaskOptions& options;
  std::filesystem::path plugin;
  std::filesystem::path folder;  ///< the task's, for its log and scratch data
  SandboxGrants grants;
  std::string python{};  ///< the interpreter of a task in Python
  uint32_t order = 0;    ///< FREERIDE_ORDER_*
  Fd& state_in;          ///< the state that it goes on from; invalid: none. Closed once the task has it
};

/// Files of a program's pages, which are removed with this.
class PageFiles {
 public:
  PageFiles() = default;
  PageFiles(const PageFiles&) = delete;
  PageFiles& operator=(const PageFiles&) = delete;
  ~PageFiles() { remove(); }
  void remove();
  /// Names files of `task`'s in `folder`, which is made. Errors: it cannot be made.
  Status name(const std::filesystem::path& folder, const std::string& device, uint64_t task);
  std::string lease, shim;  ///< paths; empty: none
};

/// A task's processes and what joins this worker to them. Everything is closed with it.
struct Launched {
  std::shared_ptr<TaskSource> pages;
  PageFiles files;
  Child supervisor;
  Fd lifeline;                            ///< the supervisor ends everything when this is closed
  Fd report;                              ///< a socket: see ReportReader
  Fd output;                              ///< what it prints
  Fd state_pipe;                          ///< saved states, or a profile's record
  Fd folder;                              ///< held so that nobody removes it
  std::filesystem::path profile_scratch;  ///< of a profile: goes with it
  std::string limits;                     ///< for people: what the sandbox and the grants hold
};

/// Adds to `grants` what a plugin in Python, or one that uses an interpreter's packages, has to see, and the settings
/// of math libraries. Returns the interpreter, "" for none. Errors: there is no such interpreter.
Result<std::string> add_environment(const std::filesystem::path& plugin, const bus::CreateTask& spec,
                                    SandboxGrants& grants);

/// Starts supervisor and runner. On an error `launched` has what was made until then.
Status launch_task(LaunchRequest request, Sandbox& sandbox, Launched& launched);

}  // namespace freeride::worker
