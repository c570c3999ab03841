// Binding a socket to an ipc endpoint so that it has the right access from its first moment and never takes a live
// one's place.
#pragma once

#include <sys/types.h>

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

 private:
  friend Result<EndpointLock> bind_endpoint(zmq::socket_t&, const std::string&, mode_t);
  void release();
  std::string path_;
  Fd lock_;
};

/// Binds `socket` to `endpoint` ("ipc://<path>") with `mode`; makes the folder (0755) if it is missing. A socket left
/// by a dead process is taken over. libzmq's own bind would unlink whatever is there, a live manager's socket too;
/// hence this. Blocks on the file system only. Errors: kInvalidArgument (not ipc, path too long), kAlreadyExists (names
/// the pid), kPermission (folder not ours, or writable for everybody).
Result<EndpointLock> bind_endpoint(zmq::socket_t& socket, const std::string& endpoint, mode_t mode);

}  // namespace freeride::bus
