// From fork to exec of a side task's supervisor, or of the program that makes its sandbox.
#pragma once

#include <string>
#include <vector>

#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// Everything the child does, in this order; prepared before the fork, since a child of a process with threads may do
/// system calls only.
struct ChildPlan {
  /// A path of the host's made reachable whatever the permissions of the folders above it.
  struct Stage {
    std::string source;
    std::string target;  ///< below kStageRoot
    bool folder = false;
  };

  /// A file or folder of the host's, opened under the rights of `rights` and nobody's else, mounted from what was
  /// opened, so that no change of a path afterwards counts. What its user owns there appears as `uid`'s; all that
  /// others own, as theirs. Needs CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID.
  struct Grant {
    std::string folder, path;  ///< as in GrantedFile
    std::string source;        ///< for messages
    std::string target;        ///< below kStageRoot
    bool write = false;
  };

  static constexpr size_t kMostGrants = 32;

  int output_fd = -1;
  std::vector<int> keep_fds;
  std::vector<int> join_fds;  ///< cgroup.procs files
  std::vector<int> cores;
  CpuPriority priority = CpuPriority::kOrdinary;
  int64_t data_limit_bytes = 0, address_limit_bytes = 0;
  bool killed_first = false;  ///< the kernel's first choice when memory runs out
  std::vector<Stage> stages;  ///< in a mount namespace of its own; needs CAP_SYS_ADMIN
  std::vector<Grant> grants;  ///< in the same namespace
  FileUser rights;            ///< of `grants`
  /// Maps for a user namespace, as /proc/PID/uid_map takes them: the user of `rights` is `uid`, everybody else himself;
  /// or, where this process's own namespace lacks most users, "least": that one user alone.
  std::string map, least_map;
  std::string group_map, least_group_map;  ///< the same of groups
  uid_t uid = 0;                           ///< 0: as it is
  std::string working_dir;
  std::string program;
  std::vector<std::string> argv;
  std::vector<std::string> env;
  bool own_env = false;  ///< `env` instead of this process's
};

constexpr const char* kStageRoot = "/tmp";

/// The memory ceiling as rlimits.
void limit_memory(ChildPlan& plan, int64_t bytes);

/// Forks. A failure in the child is said in its output; its exit status is then kCannotStart. The child's `hold` is not
/// set.
Result<Child> spawn(const ChildPlan& plan);

}  // namespace freeride::worker
