// A unary gRPC round trip over a UNIX socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace freeride::bench {

/// Serves until the process is ended; prints "ready" once it listens.
int serve_ping(const std::string& socket);

class PingClient {
 public:
  explicit PingClient(const std::string& socket);
  ~PingClient();
  /// One round trip, in nanoseconds; -1 if it failed.
  int64_t call();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace freeride::bench
