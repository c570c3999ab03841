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
#include "freeride/policy/verdict.hpp"
#include "sandbox/cpu_priority.hpp"

namespace freeride::worker {

/// A file or folder of the host that a task may use with its submitter's rights.
struct GrantedFile {
  std::string folder;  ///< that the operator has opened, without links
  std::string path;    ///< below it; ".": itself
  std::string source;  ///< both, for messages
  std::string target;  ///< inside
  bool write = false;
  bool empty = false;  ///< nothing of the host's: an empty folder or file in its place, which goes with the task
};

/// Whose rights these are.
struct FileUser {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  ///< all of them
};

/// What keeps a program's work on a GPU within its leases: a library in the place of the driver's, and its pages.
struct ShimGrant {
  std::string library;  ///< on the host; empty: there is none
  std::vector<std::string>
      drivers;  ///< libcuda.so.1, wherever it is found, without links: the library takes their place
  std::string lease_page, shim_page;  ///< files on the host: read-only, writable
};

/// What one task may use beyond what every task has: its GPU and its MPS server. The one place where such things are
/// added.
struct SandboxGrants {
  std::map<std::string, std::string> env;  ///< set in the task's environment, in place of what this process has there
  std::vector<std::string> devices;        ///< device nodes, readable and writable at the same path
  std::vector<std::string> folders;        ///< bound writable at the same path: the pipe folder of its MPS server
  std::vector<std::string> files;          ///< files and folders bound read-only at the same path: the driver's, data
  bool network = false;                    ///< the host's network
  std::vector<GrantedFile> data;           ///< its submitter's files
  FileUser data_user;                      ///< under whose rights they are used
  std::map<std::string, std::string> own_env;  ///< that the submitter has set; `env` goes before it
  std::string working_dir;                     ///< inside; empty: the scratch folder
  ShimGrant shim;                              ///< of a program on a GPU
  std::string limits;                          ///< for people: what is held beside what the sandbox says of itself
};

/// Who a task's processes are on the host. A server that is to serve them must run as the same.
struct TaskIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
};

/// What to start: `freeride-runner` with `args`.
struct SandboxRequest {
  uint64_t task = 0;              ///< its number on this worker
  std::vector<std::string> args;  ///< without argv[0]; paths as inside() names them
  std::vector<int> keep_fds;      ///< stay open under their numbers; everything else is close-on-exec
  int output_fd = -1;             ///< becomes stdout and stderr
  std::string plugin;             ///< file; empty: none
  bool program = false;           ///< it may execute the system's programs
  std::string scratch;            ///< the task's folder on the host
  std::vector<int> cores;         ///< empty: all
  CpuPriority priority = CpuPriority::kOrdinary;
  int64_t memory_limit_bytes = 0;  ///< of host memory; 0: none
  SandboxGrants grants;
};

/// Exit status of a child that could not become the program; its output says why.
constexpr int kCannotStart = 127;
/// The same where it could not be given a file that it asks for.
constexpr int kNotGiven = 126;

/// What holds a started task: its limits, and what is taken down with it. The destructor leaves nothing behind. Main
/// thread.
class Hold {
 public:
  virtual ~Hold() = default;
  /// For people: the sandbox and the limits that hold in it.
  virtual std::string describe() const = 0;
  /// Says in `verdict` which of its limits ended the task, if one did. After the child's end.
  virtual void explain(policy::Verdict& verdict, const std::string& log_tail) const = 0;
  /// Looks at the scratch folder, given an open descriptor of it (-1: none), and keeps what is in it if `keep`. After
  /// the child's end, before explain(). May copy up to the quota.
  virtual Status end_scratch(int scratch_fd, bool keep) = 0;
};

struct Child {
  pid_t pid = 0;
  Fd pidfd;
  std::unique_ptr<Hold> hold;
};

/// How a task's paths are called inside.
struct InsidePaths {
  std::string plugin, scratch;
};

/// One kind of sandbox. Main thread. Starting does not wait for the child.
class Sandbox {
 public:
  virtual ~Sandbox() = default;
  virtual const char* name() const = 0;
  /// Whether it can be made on this host: starts one and waits for it, some seconds at most. Says loudly what it does
  /// not protect from. Errors: which facility is missing and what to do.
  virtual Status check() = 0;
  /// Who the processes of the task with this number will be. The same answer from now on until the task has ended.
  virtual TaskIdentity identity(uint64_t task) = 0;
  /// The task has ended, started or not.
  virtual void forget(uint64_t task) = 0;
  /// Whether it can take on the rights of any user for a task's files, for which it has to be root.
  virtual bool takes_rights() const = 0;
  virtual InsidePaths inside(const std::string& plugin, const std::string& scratch) const = 0;
  /// Starts a child, the leader of a session of its own. Errors: kExhausted (processes, memory), kNotFound (no such
  /// program), kInvalidArgument (limits in which nothing can run).
  virtual Result<Child> start(const SandboxRequest& request) = 0;
};

/// By the host's cores: libraries make pools of as many threads as there are, and a program has several. With 256 JAX
/// cannot start where there are 64.
int64_t default_pids();

/// The worker's options for it.
struct SandboxOptions {
  std::string name = "bubblewrap";
  std::string runner;                     ///< path of freeride-runner
  std::string device;                     ///< of the worker
  std::string bwrap;                      ///< path; empty: on the PATH, else beside the worker's program
  int64_t scratch_bytes = 256ll << 20;    ///< of a task's scratch folder; part of its memory
  int64_t pids = default_pids();          ///< processes and threads of a task
  double cpus = 0;                        ///< CPU time of a task, in cores; 0: as many as it has cores
  int64_t first_uid = 2'000'000'000;      ///< first of the host's user numbers for tasks, where the worker is root
  std::string uid_folder;                 ///< where workers lock these numbers; empty: a trial's, which is not locked
  std::vector<std::string> library_dirs;  ///< beyond the system's; in LD_LIBRARY_PATH inside
  std::vector<std::string> data_dirs;     ///< below which a task may be given files, where its submitter may use them
  bool users_of_all_hosts = false;        ///< user numbers mean the same on all hosts
  bool no_network = false;                ///< no task gets the host's network, whatever its submitter asks for
};

/// Errors: kInvalidArgument: no sandbox of that name, or a limit that makes no sense.
Status check_options(const SandboxOptions& options);

/// The sandbox called `options.name`. Errors: those of check_options(); kNotFound: no bwrap.
Result<std::unique_ptr<Sandbox>> make_sandbox(const SandboxOptions& options);
/// The bwrap that make_bubblewrap() starts where SandboxOptions::bwrap is `given`; empty: there is none.
std::string find_bwrap(const std::string& given);
Result<std::unique_ptr<Sandbox>> make_bubblewrap(const SandboxOptions& options);

}  // namespace freeride::worker
