// Relay: a host's command socket and events where its manager is elsewhere, over one way there, by TCP and key.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "freeride/base/result.hpp"
#include "freeride/bus/network.hpp"

namespace freeride::bus {

struct RelayConfig {
  std::string manager;                                               ///< tcp://HOST:PORT, as in the manager's --listen
  ClientKey key;                                                     ///< of role node
  std::string commands_endpoint, publish_endpoint, events_endpoint;  ///< of this host; a Broker has the last two
  std::optional<gid_t> group;  ///< who may command here besides root and this user
};

/// Hands commands and replies between the clients of this host and the manager, without keeping any. A client without
/// an answer repeats its request. Each request is sent under the uid that the kernel says, whatever the client says. A
/// worker's request is sent under this node's key; only root and this user may be a worker.
///
/// Events of this host are sent to the manager as far as it asks for them. What the manager says of tasks, workers and
/// jobs is received as far as a subscriber of this host asks for it. Has a thread of its own.
class Relay {
 public:
  /// Binds the command socket and connects; succeeds also while no manager is there. Errors: kAlreadyExists (a manager
  /// or a node serves the socket), kPermission, kInvalidArgument (no address).
  static Result<std::unique_ptr<Relay>> start(zmq::context_t& context, const RelayConfig& config);
  ~Relay();  ///< stops and joins
  /// As Server::keep_listening().
  void keep_listening();

 private:
  Relay();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace freeride::bus
