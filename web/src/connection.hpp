// One accepted connection, as cpp-httplib reads and writes it, with bounds on time and size.
#pragma once

#include <httplib.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace freeride::web {

/// A request has `request_time` and `request_bytes` in all, however slowly it comes; a write waits for at most
/// `write_time`. cpp-httplib's own timeouts start anew with every byte. Used by one thread; the socket is the caller's.
class Connection : public httplib::Stream {
 public:
  struct Limits {
    std::chrono::milliseconds request_time{5000}, write_time{5000};
    size_t request_bytes = 32 << 10;
  };
  Connection(socket_t socket, Limits limits);

  /// Waits for the next request's first byte. False: there is none within `patience`, or the other side has gone.
  bool wait_for_request(std::chrono::milliseconds patience);

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  bool wait(short events, int64_t until_ns) const;

  const socket_t socket_;
  const Limits limits_;
  int64_t read_until_ns_ = 0;
  size_t bytes_left_ = 0;
  char buffer_[4096];
  size_t begin_ = 0, end_ = 0;
};

}  // namespace freeride::web
