// CoreFiles: what of /sys/devices/system tells a side task which cores and memory nodes it has.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace freeride::worker {

struct CoreFiles {
  std::vector<std::filesystem::path> shown;           ///< the host's folders, as they are
  std::map<std::filesystem::path, std::string> made;  ///< files with another content than the host's
};

/// Of a task that has `cores`, in ascending order. Cores that it lacks are not there, nor are memory nodes without any
/// of its cores. Empty: there is no such file system here. `system`: another one in tests.
CoreFiles core_files(const std::vector<int>& cores, const std::filesystem::path& system = "/sys/devices/system");

}  // namespace freeride::worker
