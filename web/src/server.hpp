// The HTTP side: the page, its live stream, and /metrics.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "access_rules.hpp"
#include "freeride/base/result.hpp"
#include "hub.hpp"

namespace freeride::web {

struct ServerConfig {
  Listen listen;
  std::string token;                            ///< empty: none is asked for
  std::vector<std::string> names;               ///< other values of the Host header: of a proxy in front
  size_t connections = 192;                     ///< at the same time, viewers among them; the next one is turned away
  std::chrono::milliseconds heartbeat{10'000};  ///< of a live stream in which nothing happens
  std::chrono::milliseconds request_time{5000}, write_time{5000}, idle_time{5000};
};

/// What it asks of the rest. Called on its own threads, several at a time.
struct Content {
  std::function<std::shared_ptr<Viewer>()> join;  ///< a new viewer; nullptr: too many
  std::function<void(const std::shared_ptr<Viewer>&)> leave;
  std::function<std::string(bool open_metrics)> metrics;
};

/// Answers GET and HEAD, and nothing else. A thread for each connection.
class Server {
 public:
  /// Errors: kAlreadyExists (the port or socket is taken), kPermission.
  static Result<std::unique_ptr<Server>> start(ServerConfig config, Content content);
  ~Server();  ///< Ends every connection; joins. Hub::end() comes before it.

  int port() const;             ///< at which it listens
  std::string address() const;  ///< for people: http://127.0.0.1:7473/

 private:
  Server();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace freeride::web
