// WaitFd: one descriptor that is readable whenever its owner should call receive().
//
// TRAP: a ZMQ_FD is edge-triggered in spirit. It says only that libzmq has something to do; any call on the socket, a
// send too, may eat that signal while a message waits unread, and then poll() sleeps on it for ever. So fd() is an
// epoll over ZMQ_FD and an eventfd of our own, which is set after every call that is not a receive and has left
// something to read.
#pragma once

#include <string>
#include <zmq.hpp>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::bus::detail {

/// Not thread-safe, like the socket. Must not outlive it.
class WaitFd {
 public:
  /// Throws zmq::error_t when descriptors have run out.
  explicit WaitFd(zmq::socket_t& socket);
  int fd() const { return epoll_.get(); }
  /// To be called after a send, with `more` when messages wait outside the socket.
  void after_send(bool more = false);
  /// To be called when receive() has found nothing more.
  void drained();

 private:
  zmq::socket_t& socket_;
  Fd epoll_, kick_;
  bool kicked_ = false;
};

/// An event descriptor that wakes a thread. Throws zmq::error_t when descriptors have run out: a thread that nobody can
/// wake never ends.
Fd event_fd();

/// The error of a socket that cannot be made or connected: `what`, with libzmq's reason. kInvalidArgument, with `hint`,
/// where it is asked for wrongly; kExhausted where descriptors or memory have run out, which may be better the next
/// time.
Error socket_error(const std::string& what, const zmq::error_t& error, const std::string& hint);

/// What an error of libzmq means to a thread that serves sockets, in every room the same: true, it goes on; false, it
/// ends, as its context does. Throws `error` itself where waiting mends nothing.
bool goes_on(const zmq::error_t& error);

/// Waits until `socket` (or `other`) can be read or `timeout_ms` has passed. A signal ends it early.
void wait_readable(zmq::socket_t& socket, long timeout_ms, zmq::socket_t* other = nullptr);

}  // namespace freeride::bus::detail
