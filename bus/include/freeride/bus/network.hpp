// The bus over TCP: with CURVE (libzmq's, by keys), never otherwise but on the loopback interface.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <zmq.hpp>

#include "freeride/base/result.hpp"

namespace freeride::bus {

struct KeyPair {
  std::string public_key, secret_key;  ///< Z85
};
/// A new pair. Errors: kUnavailable (libzmq was built without CURVE).
Result<KeyPair> make_key_pair();
/// The public key of `secret_key`. Errors: kInvalidArgument.
Result<std::string> public_key_of(const std::string& secret_key);

/// What a client needs to come in by TCP. `file` is for messages.
struct ClientKey {
  std::string public_key, secret_key, manager_key, file;
};

/// Decides which keys may connect to this process's TCP ports: libzmq's ZAP handler, in a thread of its own. Ports with
/// keys are opened with a Doorkeeper only, so it is there before them, and it must outlive them. Without a handler
/// libzmq would let every key in. So if its thread ends in any other way than by the destructor, the process ends. The
/// ports are told to refuse a peer when the handler does not answer (ZMQ_ZAP_ENFORCE_DOMAIN).
class Doorkeeper {
 public:
  /// Whether the key (Z85) may come in. Called on the Doorkeeper's thread for every connection, and on the thread of
  /// Server and Broker for every message; must not throw.
  using Admits = std::function<bool(const std::string& public_key)>;

  /// One for a context. Errors: kAlreadyExists (there is one), kInvalidArgument (no secret key), kUnavailable (libzmq
  /// has no CURVE, or cannot be told to refuse).
  static Result<std::unique_ptr<Doorkeeper>> start(zmq::context_t& context, const std::string& secret_key,
                                                   Admits admits);
  ~Doorkeeper();  ///< Stops and joins. From then on nobody can connect.

  const std::string& secret_key() const;
  bool admits(const std::string& public_key) const;

 private:
  Doorkeeper();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A TCP port that is to be opened. `door` nullptr: without keys, on the loopback interface only.
struct TcpPort {
  std::string endpoint;  ///< tcp://<host>:<port>; <host> is an address, a name, or * for all
  const Doorkeeper* door = nullptr;
};

/// A TCP port at which nodes publish what happens on their hosts.
struct NodesPort {
  TcpPort port;
  std::function<bool(const std::string& public_key)> may_publish;  ///< as Doorkeeper::Admits; for every event
};

/// "tcp://host:port" with the next port: where the events are of a manager that takes commands at `endpoint`. Errors:
/// kInvalidArgument (no such address).
Result<std::string> events_port_of(const std::string& endpoint);
/// The port after that: where nodes publish to that manager. Errors: as above.
Result<std::string> nodes_port_of(const std::string& endpoint);
/// Whether `endpoint` is this host's only: every address of it is of the loopback interface. May ask the name service.
Result<bool> is_loopback(const std::string& endpoint);

}  // namespace freeride::bus
