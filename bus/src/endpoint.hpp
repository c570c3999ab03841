// Binding a socket to an ipc endpoint so that it has the right access from its first moment and never takes a live
// one's place.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <zmq.hpp>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::bus {

/// Holds an endpoint: while it lives, no other program of ours can bind there. The lock is an flock() on
/// "<socket>.lock", which holds the owner's pid for messages; it ends with the process, however that ends. Must outlive
/// the bound socket.
class EndpointLock {
 public:
  EndpointLock() = default;
  EndpointLock(EndpointLock&&) noexcept = default;
  EndpointLock& operator=(EndpointLock&& other) noexcept;
  ~EndpointLock();  ///< removes the socket's name, then unlocks

  /// Whether the socket's name is there. Without it nobody can connect, and whoever removed it (a cleaner, an `rm`) has
  /// told nobody. May be called on any thread.
  bool named() const;
  /// Binds `socket` under its name once more, if that is gone, in a folder that is made again where it is gone, too.
  /// Logs it, and a failure once. Its connections go on.
  void keep_named(zmq::socket_t& socket);

 private:
  friend Result<EndpointLock> bind_endpoint(zmq::socket_t&, const std::string&, std::optional<gid_t>);
  void release();
  Status take_lock();
  Status name_again(zmq::socket_t& socket);
  std::string path_;
  std::optional<gid_t> group_;
  Fd lock_;
  bool failure_said_ = false;
};

/// Binds `socket` to `endpoint` ("ipc://<path>") for this process's user alone (mode 0600), or for `group` too (0660);
/// makes the folder (0755) if it is missing. The Gate counts its connections. A socket left by a dead process is taken
/// over. libzmq's own bind would unlink whatever is there, a live manager's socket too; hence this. Blocks on the file
/// system only. Errors: kInvalidArgument (not ipc, path too long), kAlreadyExists (names the pid), kPermission (the
/// folder: check_run_folder()'s).
Result<EndpointLock> bind_endpoint(zmq::socket_t& socket, const std::string& endpoint, std::optional<gid_t> group);

/// Hands `listener`, which listens at `endpoint`, to `socket`, whose connections the Gate counts from then on. Where
/// that fails, neither the Gate nor the socket keeps the descriptor's number, which may be another file's soon. Throws
/// zmq::error_t.
void hand_over(zmq::socket_t& socket, Fd listener, const std::string& endpoint);

/// Connects `socket` to `endpoint`, now and whenever the connection is lost: only through a folder and to a process
/// that base's access.hpp believes. Where it does not, nothing is said and nothing heard, as if nobody were there;
/// why_unreachable() tells. Throws zmq::error_t.
void connect_endpoint(zmq::socket_t& socket, const std::string& endpoint);

/// The error that keeps this process from `endpoint` and that waiting does not mend; fine when there is none.
Status why_unreachable(const std::string& endpoint);

}  // namespace freeride::bus
