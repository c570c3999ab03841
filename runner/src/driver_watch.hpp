// DriverWatch: whether what has the shim of libcuda reaches the GPU past it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace freeride::runner {

/// The files that a process has mapped under the name libcuda.so or libcuda.so.VERSION, each once. `maps`: the text of
/// /proc/PID/maps. Files that are deleted are not among them. Pure.
std::vector<std::string> mapped_drivers(std::string_view maps);

/// Whether a process has opened the driver's device for computing. NVML does not. `links`: what its descriptors lead
/// to. Pure.
bool computes_on_gpu(const std::vector<std::string>& links);

/// Looks at what processes have mapped and open: soon after they are first seen, then at ever longer intervals. It
/// finds honest mistakes (a second libcuda of conda or cuda-compat, a program with a driver of its own) and tells them
/// by name; against a program that hides there is the worker's probe. Not thread-safe.
class DriverWatch {
 public:
  /// Paths as this process sees them: what stands where the driver's library is looked for, and the driver itself,
  /// which it opens.
  DriverWatch(std::string shim, std::string real) : shim_(std::move(shim)), real_(std::move(real)) {}

  /// Looks at one process at most, the first that is due. A sentence if it goes past the shim, and what to do. Reads
  /// files of /proc; a millisecond for a process with thousands of mappings.
  std::optional<std::string> look(const std::vector<pid_t>& processes, int64_t now_ns);

 private:
  struct Looks {
    int64_t next_ns = 0, interval_ns = 0;
  };
  std::optional<std::string> judge(pid_t pid) const;

  const std::string shim_, real_;
  std::map<pid_t, Looks> looks_;
};

}  // namespace freeride::runner
