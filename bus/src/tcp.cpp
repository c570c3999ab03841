#include "tcp.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "endpoint.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/key_file.hpp"
#include "freeride/base/log.hpp"
#include "freeride/bus/probe.hpp"
#include "gate.hpp"
#include "message.hpp"

// Not in zmq.h's stable part, but in every libzmq since 4.3.0; what it does is tested in network_test.cpp.
#ifndef ZMQ_ZAP_ENFORCE_DOMAIN
#define ZMQ_ZAP_ENFORCE_DOMAIN 93
#endif

namespace freeride::bus {
namespace detail {
namespace {

constexpr const char* kZapDomain = "freeride";
constexpr uint64_t kNetworkThread = 2;  // the second, as libzmq's set of I/O threads
constexpr const char* kStartedKeyless =
    "check --manager; if that manager's first key was made after its start, it is to be started again";
constexpr int kUnclearFailures = 2;  // one may be a manager that is just ending
constexpr int kIdleS = 2, kSilenceMs = 5000, kConnectMs = 3000;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Result<Addresses> resolve(const std::string& endpoint, bool to_listen) {
  const auto address = parse_tcp(endpoint);
  if (!address) return address.error();
  addrinfo wish{};
  wish.ai_socktype = SOCK_STREAM;
  wish.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const bool any = address->host == "*";
  const int failed =
      getaddrinfo(any ? nullptr : address->host.c_str(), std::to_string(address->port).c_str(), &wish, &found);
  if (failed != 0) {
    // As while a host boots: what asks then is to try again, and a service is started again.
    const Code code = failed == EAI_AGAIN || failed == EAI_MEMORY ? Code::kUnavailable : Code::kInvalidArgument;
    return Error{code, "the host of " + endpoint + " is not known: " + gai_strerror(failed),
                 "name a host or an address: tcp://HOST:PORT"};
  }
  return Addresses(found, freeaddrinfo);
}

bool loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Of "*" the IPv6 one, which takes IPv4 as well; a host without IPv6 has only the other.
const addrinfo* to_listen_at(const addrinfo* all, bool any) {
  for (const addrinfo* one = all; any && one != nullptr; one = one->ai_next) {
    if (one->ai_family != AF_INET6) continue;
    if (const Fd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)); probe.valid()) return one;
  }
  const addrinfo* four = all;
  while (any && four != nullptr && four->ai_family != AF_INET) four = four->ai_next;
  return four != nullptr ? four : all;
}

}  // namespace

Result<TcpAddress> parse_tcp(const std::string& endpoint) {
  const Error wrong{Code::kInvalidArgument, "'" + endpoint + "' is no address", "write tcp://HOST:PORT"};
  if (!is_tcp(endpoint)) return wrong;
  const std::string rest = endpoint.substr(std::strlen(kTcp));
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos || colon == 0) return wrong;
  TcpAddress address{rest.substr(0, colon), 0};
  const char* end = rest.data() + rest.size();
  const auto parsed = std::from_chars(rest.data() + colon + 1, end, address.port);
  if (parsed.ec != std::errc() || parsed.ptr != end || address.port == 0) return wrong;
  if (address.host.front() == '[' && address.host.back() == ']')
    address.host = address.host.substr(1, address.host.size() - 2);
  else if (address.host.find(':') != address.host.npos)
    return Error{Code::kInvalidArgument, "'" + endpoint + "' is no address",
                 "write an IPv6 address in brackets: tcp://[::1]:7420"};
  if (address.host.empty() || address.host.find_first_of("/@;, \t\n") != address.host.npos) return wrong;
  return address;
}

Status check_tcp_host(const std::string& endpoint) {
  const auto found = resolve(endpoint, false);
  if (!found) return found.error();
  return {};
}

TcpListener::~TcpListener() {
  if (!endpoint_.empty()) Gate::instance().forget(endpoint_);
}

Status TcpListener::open(zmq::context_t& context, zmq::socket_t& socket, const TcpPort& port, size_t most_bytes) {
  const std::string& endpoint = port.endpoint;
  const auto address = parse_tcp(endpoint);
  if (!address) return address.error();
  const auto found = resolve(endpoint, true);
  if (!found) return found.error();
  const bool any = address->host == "*";
  const addrinfo* at = to_listen_at(found->get(), any);
  if (port.door == nullptr && !loopback(at->ai_addr)) {
    return Error{Code::kInvalidArgument, endpoint + " is not opened: without keys it would be everybody's",
                 "make keys (freeride-ctl keys make NAME --role ROLE), or listen at tcp://127.0.0.1:" +
                     std::to_string(address->port)};
  }
  Fd listener(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1, zero = 0;
  if (!listener.valid()) return errno_error("cannot make a socket for " + endpoint, errno);
  if (at->ai_family == AF_INET6)
    (void)setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, any ? &zero : &one, sizeof one);
  if (setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
      ::bind(listener.get(), at->ai_addr, at->ai_addrlen) != 0 || ::listen(listener.get(), 128) != 0) {
    Error error = errno_error("cannot listen at " + endpoint, errno, "choose another --listen");
    if (errno == EADDRINUSE) error.code = Code::kAlreadyExists;
    return error;
  }
  try {
    if (port.door != nullptr) {
      socket.set(zmq::sockopt::curve_server, true);
      socket.set(zmq::sockopt::curve_secretkey, port.door->secret_key());
      socket.set(zmq::sockopt::zap_domain, kZapDomain);
      if (zmq_setsockopt(socket.handle(), ZMQ_ZAP_ENFORCE_DOMAIN, &one, sizeof one) != 0) throw zmq::error_t();
    }
    if (context.get(zmq::ctxopt::io_threads) > 1) socket.set(zmq::sockopt::affinity, kNetworkThread);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(most_bytes));
    socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
    socket.set(zmq::sockopt::tcp_keepalive, 1);  // a host that is gone does not say so
    socket.set(zmq::sockopt::tcp_keepalive_idle, 60);
    socket.set(zmq::sockopt::tcp_keepalive_intvl, 10);
    socket.set(zmq::sockopt::tcp_keepalive_cnt, 6);
    hand_over(socket, std::move(listener), endpoint);
    endpoint_ = endpoint;
  } catch (const zmq::error_t& error) {
    return Error{Code::kInternal, "cannot open " + endpoint + ": " + error.what(), ""};
  }
  return {};
}

std::string key_of(zmq::message_t& frame) {
  const char* user = ::zmq_msg_gets(frame.handle(), "User-Id");
  return user != nullptr && is_z85_key(user) ? user : "";
}

std::string address_of(zmq::message_t& frame) {
  const char* address = ::zmq_msg_gets(frame.handle(), "Peer-Address");
  return address != nullptr ? address : "";
}

void set_client_key(zmq::socket_t& socket, const ClientKey* key) {
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 60);
  if (key == nullptr) return;
  socket.set(zmq::sockopt::curve_serverkey, key->manager_key);
  socket.set(zmq::sockopt::curve_publickey, key->public_key);
  socket.set(zmq::sockopt::curve_secretkey, key->secret_key);
}

void set_long_link(zmq::socket_t& socket) {
  // By the kernel, not by ZMTP's heartbeats: a ping that waits in a manager whose input is stopped aborts it when the
  // connection ends (libzmq 4.3.4, stream_engine_base_t::out_event(); its issues 4364 and 3937).
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, kIdleS);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 1);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, kSilenceMs / 1000 - kIdleS);
  socket.set(zmq::sockopt::tcp_maxrt, kSilenceMs);  // of what was sent and is not acknowledged
  socket.set(zmq::sockopt::connect_timeout, kConnectMs);
  socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
}

HandshakeWatch::HandshakeWatch(zmq::context_t& context, zmq::socket_t& socket, std::string endpoint,
                               const ClientKey* key)
    : watched_(socket),
      monitor_(context, zmq::socket_type::pair),
      endpoint_(std::move(endpoint)),
      file_(key != nullptr ? key->file : ""),
      has_key_(key != nullptr) {
  static std::atomic<uint64_t> count{0};
  const std::string at = "inproc://handshakes-" + std::to_string(++count);
  // Few enough that nobody has to read them: a connection that fails is tried again once a second.
  constexpr int kEvents = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
  monitor_.set(zmq::sockopt::linger, 0);
  monitor_.set(zmq::sockopt::rcvhwm, 0);
  if (zmq_socket_monitor(socket.handle(), at.c_str(), kEvents) != 0) throw zmq::error_t();
  monitor_.connect(at);
}

HandshakeWatch::~HandshakeWatch() {
  zmq_socket_monitor(watched_.handle(), nullptr, 0);  // before its reader is gone: libzmq would wait for another
}

Status HandshakeWatch::look() {
  for (;;) {
    zmq::message_t head, where;
    if (!monitor_.recv(head, zmq::recv_flags::dontwait) || !head.more()) return standing_;
    (void)monitor_.recv(where, zmq::recv_flags::dontwait);
    uint16_t event = 0;
    uint32_t value = 0;
    if (head.size() != sizeof event + sizeof value) continue;
    std::memcpy(&event, head.data(), sizeof event);
    std::memcpy(&value, static_cast<const char*>(head.data()) + sizeof event, sizeof value);
    switch (event) {
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        connected_ = true;
        ++connections_;
        unclear_ = 0;
        standing_ = {};
        break;
      case ZMQ_EVENT_DISCONNECTED:
        connected_ = false;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        connected_ = false;
        standing_ = Error{Code::kPermission, "the manager at " + endpoint_ + " refused this key (" + file_ + ")",
                          "it is unknown there or was revoked: ask its operator (freeride-ctl keys list)"};
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        connected_ = false;
        if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH && !has_key_) {
          standing_ = Error{Code::kPermission, "the manager at " + endpoint_ + " wants a key",
                            "name one with --key FILE; its operator makes it with freeride-ctl keys make"};
        } else if (value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
          standing_ = Error{Code::kPermission,
                            "what listens at " + endpoint_ + " uses no keys, and this side has one (" + file_ + ")",
                            kStartedKeyless};
        } else {
          standing_ = Error{Code::kUnavailable, "what listens at " + endpoint_ + " is no manager that this key is for",
                            "check --manager and --key"};
        }
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        connected_ = false;
        // A manager may see first that this side has no key, or another's; it closes without a word.
        if (++unclear_ < kUnclearFailures) break;
        standing_ =
            has_key_
                ? Error{Code::kPermission, "the manager at " + endpoint_ + " is not the one that " + file_ + " is for",
                        std::string(kStartedKeyless) + "; or its keys were made again: ask its operator for another"}
                : Error{Code::kPermission, "what listens at " + endpoint_ + " wants a key, or is no manager",
                        "name a key with --key FILE, or check --manager"};
        break;
      default:
        break;
    }
  }
}

}  // namespace detail

Status probe_tcp(const std::string& endpoint, std::chrono::milliseconds patience) {
  const auto found = detail::resolve(endpoint, false);
  if (!found) return found.error();
  int why = ECONNREFUSED;
  for (const addrinfo* one = found->get(); one != nullptr; one = one->ai_next) {
    const Fd probe(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe.valid()) continue;
    why = ::connect(probe.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (why == EINPROGRESS) {
      pollfd look{probe.get(), POLLOUT, 0};
      socklen_t size = sizeof why;
      if (::poll(&look, 1, static_cast<int>(patience.count())) <= 0 ||
          getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &why, &size) != 0)
        why = ETIMEDOUT;
    }
    if (why == 0) return {};
  }
  Error error = errno_error("nobody is reached at " + endpoint, why,
                            "is freeride-manager running there with --listen? does a firewall close the port?");
  error.code = Code::kTimeout;
  return error;
}

Result<KeyPair> make_key_pair() {
  char public_key[kZ85KeyBytes + 1] = {}, secret_key[kZ85KeyBytes + 1] = {};
  if (zmq_curve_keypair(public_key, secret_key) != 0) {
    return Error{Code::kUnavailable, "cannot make a key: this libzmq has no CURVE", "install Debian's libzmq5"};
  }
  return KeyPair{public_key, secret_key};
}

Result<std::string> public_key_of(const std::string& secret_key) {
  char public_key[kZ85KeyBytes + 1] = {};
  if (!is_z85_key(secret_key) || zmq_curve_public(public_key, secret_key.c_str()) != 0)
    return Error{Code::kInvalidArgument, "this is no secret key", "make one with freeride-ctl keys make"};
  return std::string(public_key);
}

Result<std::string> events_port_of(const std::string& endpoint) {
  const auto address = detail::parse_tcp(endpoint);
  if (!address) return address.error();
  if (address->port == 65535)
    return Error{Code::kInvalidArgument, "there is no port after that of " + endpoint, "choose a lower one"};
  return endpoint.substr(0, endpoint.rfind(':') + 1) + std::to_string(address->port + 1);
}

Result<std::string> nodes_port_of(const std::string& endpoint) {
  const auto events = events_port_of(endpoint);
  return events ? events_port_of(*events) : events;
}

Result<bool> is_loopback(const std::string& endpoint) {
  const auto address = detail::parse_tcp(endpoint);
  if (!address) return address.error();
  if (address->host == "*") return false;
  const auto found = detail::resolve(endpoint, true);
  if (!found) return found.error();
  for (const addrinfo* one = found->get(); one != nullptr; one = one->ai_next) {
    if (!detail::loopback(one->ai_addr)) return false;
  }
  return true;
}

}  // namespace freeride::bus
