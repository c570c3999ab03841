#include "connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "freeride/base/clock.hpp"

namespace freeride::web {
namespace {
int64_t after(std::chrono::milliseconds time) {
  return SteadyClock::now() + time.count() * kNsPerMs;
}
}  // namespace

Connection::Connection(socket_t socket, Limits limits) : socket_(socket), limits_(limits) {}

bool Connection::wait(short events, int64_t until_ns) const {
  while (true) {
    const int64_t left_ns = until_ns - SteadyClock::now();
    if (left_ns <= 0) return false;
    pollfd one{socket_, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(left_ns / kNsPerMs + 1));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool Connection::wait_for_request(std::chrono::milliseconds patience) {
  if (begin_ == end_ && !wait(POLLIN, after(patience))) return false;
  read_until_ns_ = after(limits_.request_time);
  bytes_left_ = limits_.request_bytes;
  return true;
}

bool Connection::is_readable() const {
  return begin_ != end_ || wait(POLLIN, read_until_ns_);
}

// cpp-httplib asks between the parts of an answer: whether a page has gone shows here at once.
bool Connection::is_writable() const {
  char none = 0;
  const ssize_t got = recv(socket_, &none, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
  return wait(POLLOUT, after(limits_.write_time));
}

ssize_t Connection::read(char* data, size_t size) {
  if (begin_ == end_) {
    if (bytes_left_ == 0 || !wait(POLLIN, read_until_ns_)) return -1;
    const ssize_t got = recv(socket_, buffer_, std::min(sizeof buffer_, bytes_left_), MSG_DONTWAIT);
    if (got <= 0) return got;
    bytes_left_ -= static_cast<size_t>(got);
    begin_ = 0;
    end_ = static_cast<size_t>(got);
  }
  const size_t count = std::min(size, end_ - begin_);
  std::memcpy(data, buffer_ + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  const int64_t until_ns = after(limits_.write_time);
  size_t sent = 0;
  while (sent < size) {
    const ssize_t some = send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some > 0) {
      sent += static_cast<size_t>(some);
    } else if ((some < 0 && errno != EAGAIN && errno != EINTR) || !wait(POLLOUT, until_ns)) {
      return -1;
    }
  }
  return static_cast<ssize_t>(sent);
}

// Whoever asks gets the same answer: addresses decide nothing here.
void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}
void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace freeride::web
