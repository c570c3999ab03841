// TCP endpoints: what they say, opening a port, and connecting to one.
#pragma once

#include <cstdint>
#include <string>
#include <zmq.hpp>

#include "freeride/base/result.hpp"
#include "freeride/bus/network.hpp"

namespace freeride::bus::detail {

constexpr const char* kTcp = "tcp://";
inline bool is_tcp(const std::string& endpoint) {
  return endpoint.rfind(kTcp, 0) == 0;
}

/// Over TCP no frame is larger: what a stranger sends is in memory before anybody knows who it is. Attachments travel
/// in as many frames as it takes.
constexpr size_t kTcpFrameBytes = 4u << 20;
constexpr size_t kMaxTcpFrames = 3 + (256u << 20) / kTcpFrameBytes + 2;
/// The handshake of a connection is over within this time, or the connection is.
constexpr int kHandshakeMs = 10'000;

struct TcpAddress {
  std::string host;  ///< without brackets
  uint16_t port = 0;
};
/// Errors: kInvalidArgument.
Result<TcpAddress> parse_tcp(const std::string& endpoint);

/// Whether the host of `endpoint` is known. Asks the name service, which may block. Errors: kInvalidArgument.
Status check_tcp_host(const std::string& endpoint);

/// A port that `socket` listens at; its connections are counted by the Gate until it ends. Must outlive the socket.
class TcpListener {
 public:
  TcpListener() = default;
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;
  ~TcpListener();
  /// Opens `port` with `socket`, for messages of `most_bytes` a frame. Where `context` has a second I/O thread it is
  /// the network's alone: what handshakes strangers order is no work of this host's sockets. Errors: kInvalidArgument
  /// (no address, or one beyond loopback without keys), kAlreadyExists, kPermission.
  Status open(zmq::context_t& context, zmq::socket_t& socket, const TcpPort& port, size_t most_bytes);
  const std::string& endpoint() const { return endpoint_; }

 private:
  std::string endpoint_;
};

/// The key (Z85) that a message has come with; empty: none. Only for sockets that nobody can connect to without the
/// Doorkeeper having said so: elsewhere a peer may claim any.
std::string key_of(zmq::message_t& frame);
/// The address at the other end of the TCP connection that `frame` came over.
std::string address_of(zmq::message_t& frame);

/// Prepares `socket` for connecting to a TCP endpoint. `key` nullptr: without one.
void set_client_key(zmq::socket_t& socket, const ClientKey* key);
/// Prepares it for a link that stays for long: one that is cut is noticed within seconds, and made again as soon as it
/// can be, whatever TCP itself waits for.
void set_long_link(zmq::socket_t& socket);

/// What becomes of a client's handshakes, from libzmq's monitor; libzmq itself says nothing of a refusal. One thread,
/// the socket's. Must be made before the socket connects, and must not outlive it.
class HandshakeWatch {
 public:
  HandshakeWatch(zmq::context_t& context, zmq::socket_t& socket, std::string endpoint, const ClientKey* key);
  HandshakeWatch(const HandshakeWatch&) = delete;
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;
  ~HandshakeWatch();
  /// The standing error: whatever waits, it will not be let in. Fine: not known yet, or connected.
  Status look();
  bool connected() const { return connected_; }
  uint64_t connections() const { return connections_; }  ///< that were made so far
  zmq::socket_t& socket() { return monitor_; }           ///< readable when look() has something new

 private:
  zmq::socket_t& watched_;
  zmq::socket_t monitor_;
  std::string endpoint_, file_;
  bool has_key_ = false, connected_ = false;
  uint64_t connections_ = 0;
  int unclear_ = 0;
  Status standing_;
};

}  // namespace freeride::bus::detail
