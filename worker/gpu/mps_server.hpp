// MpsServer: the MPS control daemon and server of one side task, from start to end.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// How one is started.
struct MpsRequest {
  std::string control;           ///< path of nvidia-cuda-mps-control
  std::filesystem::path folder;  ///< its pipe folder; made here, removed with the server
  std::string gpu;               ///< UUID
  TaskIdentity identity;         ///< of the task: a server serves one user only
  int64_t limit_bytes = 0;       ///< device memory a client may have, its context included
  int thread_pct = 100;          ///< share of the multiprocessors
};

/// Runs the control daemon in the foreground as a child, with the limits set at the server, where a client cannot lift
/// them, and read back. Ends with this object, with this process and with whichever of its two processes ends first.
/// Main thread; never blocks.
class MpsServer {
 public:
  /// Called once, and not from within start(): ready, or why not. Errors: kUnavailable, kTimeout, kInternal (a control
  /// program that does not hold the limits).
  using Ready = std::function<void(Status)>;
  /// Called at most once, after Ready: it has ended by itself, and how.
  using Died = std::function<void(const std::string& how)>;
  using Clients = std::function<void(Result<std::vector<pid_t>>)>;

  /// Errors: kInvalidArgument (a folder whose name is too long for a socket), kPermission, kExhausted.
  static Result<std::unique_ptr<MpsServer>> start(const MpsRequest& request, Loop& loop, Ready ready, Died died);
  ~MpsServer();
  MpsServer(const MpsServer&) = delete;
  MpsServer& operator=(const MpsServer&) = delete;

  pid_t control_pid() const { return control_.pid; }
  pid_t server_pid() const { return server_pid_; }  ///< 0 until it is ready
  const std::filesystem::path& folder() const { return request_.folder; }
  /// The processes that are connected. `done` is called later, or never where the server ends first.
  void clients(Clients done);
  /// Whether it has written down that a client made the GPU fault; also true after its end. Its log lies in a folder
  /// beside the pipe folder's parent (NAME-logs) that no sandbox has. Reads a file of 16 MiB at most. A longer one
  /// counts as a fault, and ends the server within a second.
  bool saw_fault() const;

 private:
  class Command;
  using Replied = std::function<void(Result<std::string>)>;
  MpsServer(MpsRequest request, Loop& loop, Ready ready, Died died);
  Status launch();
  void look_for_socket();
  void ask(const std::string& command, Replied done);
  void next_command();
  void configure();
  void find_server();
  void watch_server(pid_t pid);
  void look_at_log();
  void fail(const Error& error);
  void ended(const std::string& how);
  std::string output_tail() const;
  void end_processes();

  const MpsRequest request_;
  Loop& loop_;
  Ready ready_;
  Died died_;
  Child control_;
  Fd server_pidfd_, output_;
  pid_t server_pid_ = 0;
  bool saw_fault_ = false;  // before its log was removed
  int64_t give_up_ns_ = 0;
  Loop::Timer timer_ = 0;
  std::unique_ptr<Command> command_;
  std::deque<std::pair<std::string, Replied>> waiting_;
};

/// Ends what a worker that is gone left in `folder`'s subfolders, whose names begin with `prefix`, and removes them.
/// Processes are known by the folder in their environment, never by a number alone.
void sweep_mps_folders(const std::filesystem::path& folder, const std::string& prefix);

}  // namespace freeride::worker
