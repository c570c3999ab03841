#include "wait_fd.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>

namespace freeride::bus::detail {

WaitFd::WaitFd(zmq::socket_t& socket) : socket_(socket), epoll_(::epoll_create1(EPOLL_CLOEXEC)), kick_(event_fd()) {
  const int zmq_fd = socket.get(zmq::sockopt::fd);
  epoll_event event = {};
  event.events = EPOLLIN;
  if (!epoll_.valid() || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, zmq_fd, &event) != 0 ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, kick_.get(), &event) != 0) {
    throw zmq::error_t();  // carries errno
  }
}

void WaitFd::after_send(bool more) {
  if (kicked_) return;
  if (more || (socket_.get(zmq::sockopt::events) & ZMQ_POLLIN) != 0) {
    const uint64_t one = 1;
    kicked_ = ::write(kick_.get(), &one, sizeof one) == sizeof one;
  }
}

void WaitFd::drained() {
  if (!kicked_) return;
  uint64_t count = 0;
  (void)!::read(kick_.get(), &count, sizeof count);
  kicked_ = false;
}

Fd event_fd() {
  Fd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) throw zmq::error_t();  // carries errno
  return fd;
}

Error socket_error(const std::string& what, const zmq::error_t& error, const std::string& hint) {
  const bool scarce = error.num() == EMFILE || error.num() == ENFILE || error.num() == ENOMEM;
  const std::string text = what + ": " + error.what();
  if (scarce) return {Code::kExhausted, text, "raise the limit on open files (ulimit -n, LimitNOFILE), or free memory"};
  return {Code::kInvalidArgument, text, hint};
}

bool goes_on(const zmq::error_t& error) {
  if (error.num() == ETERM) return false;
  if (error.num() != EINTR && error.num() != EAGAIN) throw error;
  return true;
}

void wait_readable(zmq::socket_t& socket, long timeout_ms, zmq::socket_t* other) {
  zmq::pollitem_t items[] = {{socket.handle(), 0, ZMQ_POLLIN, 0},
                             {other != nullptr ? other->handle() : nullptr, -1, ZMQ_POLLIN, 0}};
  try {
    zmq::poll(items, other != nullptr ? 2 : 1, std::chrono::milliseconds(timeout_ms));
  } catch (const zmq::error_t&) {  // EINTR: the caller looks at its deadline
  }
}

}  // namespace freeride::bus::detail
