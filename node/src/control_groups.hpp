// Control groups of version 2 for a node and its workers.
#pragma once

#include <filesystem>
#include <string>

#include "freeride/base/fd.hpp"

namespace freeride::node {

/// A group that has controlled groups below it may have no processes (of version 2; of version 1 there is nothing to
/// do). So where this process is alone in a group that it was given (systemd's Delegate=), it moves into one below it,
/// and each worker gets one beside it, in which the worker is alone. One for the process.
class ControlGroups {
 public:
  ControlGroups() = default;  ///< has none
  /// Where this process is not alone in its group, or may not write there, workers stay in it and say what they lack.
  /// `self` is /proc/self/cgroup, `mount` where version 2 is.
  static ControlGroups prepare(const std::filesystem::path& self = "/proc/self/cgroup",
                               const std::filesystem::path& mount = "/sys/fs/cgroup");
  /// The open `cgroup.procs` of a worker's group: a process that writes "0" there has joined. Not valid: there is none.
  Fd join(const std::string& device) const;

 private:
  std::filesystem::path folder_;  // empty: there are none
};

}  // namespace freeride::node
