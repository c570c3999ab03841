// Sandbox: how a side task's supervisor is started, and what keeps it within its limits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::worker {

/// What one task may use beyond what every task has: its GPU and its MPS server. The one place where such things are
/// added.
struct SandboxGrants {
  std::map<std::string, std::string> env;  ///< set in the task's environment, in place of what this process has there
  std::vector<std::string> devices;        ///< device nodes, readable and writable at the same path
  std::vector<std::string> folders;        ///< bound writable at the same path: the pipe folder of its MPS server
  std::vector<std::string> files;          ///< files and folders bound read-only at the same path: the driver's
};

/// Who a task's processes are on the host. A server that is to serve them must run as the same.
struct TaskIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// What to start.
struct SandboxRequest {
  std::string program;            ///< path of freeride-runner
  std::vector<std::string> args;  ///< without argv[0]
  std::vector<int> keep_fds;      ///< stay open under their numbers; everything else is close-on-exec
  int output_fd = -1;             ///< becomes stdout and stderr
  std::string working_dir;
  std::vector<int> cores;          ///< empty: all
  bool lowest_priority = false;    ///< SCHED_IDLE: anything else on its cores goes first
  int64_t memory_limit_bytes = 0;  ///< of host memory; 0: none
  SandboxGrants grants;
};

/// Exit status of a child that could not become the program; its output says why.
constexpr int kCannotStart = 127;

struct Child {
  pid_t pid = 0;
  Fd pidfd;
};

/// One kind of sandbox. Main thread. Starting does not wait for the child.
class Sandbox {
 public:
  virtual ~Sandbox() = default;
  virtual const char* name() const = 0;
  /// For people: the sandbox and the limits that hold in it for a task with this memory limit.
  virtual std::string describe(int64_t memory_limit_bytes) const = 0;
  /// Who the processes of the task with this number will be. The same answer from now on until the task has ended.
  virtual TaskIdentity identity(uint64_t task) = 0;
  /// Starts a child, the leader of a session of its own. Errors: kExhausted (processes, memory), kNotFound (no such
  /// program).
  virtual Result<Child> start(const SandboxRequest& request) = 0;
};

/// The sandbox called `name`. Errors: kInvalidArgument, listing the names there are.
Result<std::unique_ptr<Sandbox>> make_sandbox(const std::string& name);

}  // namespace freeride::worker
