// The four ends of the bus: Publisher and Subscriber for events, Requester and Server for commands. None is
// thread-safe: one thread owns each. Waiting is done on fd() with poll, or with the blocking calls given here; nothing
// waits without a bound.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "freeride/base/access.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/bus/network.hpp"

namespace freeride::bus {

/// Publishes events to the broker. Never blocks: what the socket cannot take is dropped, and seen by subscribers as a
/// gap.
class Publisher {
 public:
  /// `source` names this publisher; a random suffix is added. Connecting succeeds also while no broker is there.
  static Result<std::unique_ptr<Publisher>> connect(zmq::context_t& context, const std::string& endpoint,
                                                    const std::string& source);
  ~Publisher();

  /// Topic on the wire: "<kTopic>/<key()>".
  template <class E>
  void publish(const E& event) {
    publish_raw(std::string(E::kTopic) + "/" + event.key(), encode(next_envelope(), event));
  }
  const std::string& source() const;
  /// Says the last states again to a broker that has started since. publish() does it too: call this about once a
  /// second, so that it also happens when there is nothing to publish.
  void refresh();

 private:
  Publisher();
  Envelope next_envelope();
  void publish_raw(const std::string& topic, const std::string& payload);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An event as received; decode it with as<E>() after looking at topic().
struct Event {
  std::string topic;  ///< "bubble.end/gpt/3"
  Envelope envelope;
  std::string payload;
  bool is(const char* topic_name) const {
    return topic.compare(0, std::char_traits<char>::length(topic_name), topic_name) == 0;
  }
  template <class E>
  Result<E> as() const {
    return decode<E>(payload);
  }
};

/// Receives events. Kept events (last states) come first; duplicates of them are dropped by sequence number.
class Subscriber {
 public:
  /// So many events wait in this process for receive() by default, beside as many at the broker.
  static constexpr int kQueued = 4096;

  /// `key`: how to come in at a tcp:// endpoint; nullptr: without one. `queued`: how many events wait here. If you look
  /// in intervals, let few wait here, and the rest in the kernel and at the broker: libzmq's thread is not woken for
  /// each of those. Errors: kInvalidArgument (no endpoint, or a host that the name service does not know).
  static Result<std::unique_ptr<Subscriber>> connect(zmq::context_t& context, const std::string& endpoint,
                                                     const std::vector<std::string>& topic_prefixes,
                                                     const ClientKey* key = nullptr, int queued = kQueued);
  ~Subscriber();
  /// At a tcp:// endpoint: why there will be no events, whatever one waits (the key is refused or revoked, or somebody
  /// else listens). Fine everywhere else.
  Status reachable();
  /// Waits until a tcp:// endpoint has let it in. Errors: reachable()'s; kTimeout (says what one attempt met).
  Status await(std::chrono::milliseconds timeout);
  /// The next well-formed event, or nothing after `timeout`. Malformed messages are counted and skipped.
  std::optional<Event> receive(std::chrono::milliseconds timeout);
  uint64_t lost() const;  ///< events missed, by sequence numbers. Only meaningful with an empty prefix (all topics).
  uint64_t malformed() const;  ///< messages that were no events of this version
  /// Readable when there may be something to receive: then receive(0) until nothing comes, before polling again. (A
  /// bare ZMQ_FD has the further trap that a send can eat its signal; this one, and those below, have not.)
  int fd() const;

 private:
  Subscriber();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A command or its reply, as it travels. The first frame is a map {v, kind: "request"|"reply", id, command, ok, code,
/// message, hint, body}. The second one is an optional attachment (a plugin's bytes).
struct Message {
  bool is_reply = false;
  std::string id;  ///< request id: the same for a repeated request and for its reply
  std::string command;
  std::optional<Error> error;  ///< replies only
  std::string body;            ///< encoded T
  std::string attachment;
  std::optional<uint32_t> uid;  ///< requests only: for which user of its host a node speaks
  template <class T>
  Result<T> as() const {
    return decode<T>(body);
  }
};

/// Sends commands to a Server and may receive commands from it (the worker's side). Reconnects by itself, for ever.
class Requester {
 public:
  /// `key`: how to come in at a tcp:// endpoint; nullptr: without one.
  static Result<std::unique_ptr<Requester>> connect(zmq::context_t& context, const std::string& endpoint,
                                                    const ClientKey* key = nullptr);
  ~Requester();
  /// From now on a node's requests are for this user of its host; nothing: for nobody.
  void speak_for(std::optional<uint32_t> uid);

  /// Sends `command`, waits for its reply at most `timeout` in all, repeating it under the same id after each second of
  /// silence. Errors: the server's own; kTimeout (no reply: names the endpoint, and how to start a manager where nobody
  /// could be given the command; else it may have been done); kVersion.
  /// At a tcp:// endpoint also kPermission, as soon as the manager refuses the key. Requests that arrive meanwhile are
  /// kept for receive(). What has an attachment is not repeated over a TCP connection that has it already; what has a
  /// large one, after pauses that double. `id`, where given, is the request's: the same as of an earlier one that was
  /// not answered.
  template <class C>
  Result<Message> request(const C& command, std::chrono::milliseconds timeout, std::string attachment = {},
                          const std::string& id = {}) {
    return request_raw(C::kCommand, encode(command), timeout, std::move(attachment), id);
  }
  /// Of the last request(), which has failed: a connection was given it, so it may have been done all the same.
  bool may_be_done() const;
  /// Sends and does not wait; returns the request id. The reply comes out of receive().
  template <class C>
  std::string send(const C& command, std::string attachment = {}) {
    return send_raw(C::kCommand, encode(command), std::move(attachment));
  }
  /// Answers a request that came out of receive().
  template <class T>
  void reply(const Message& request, const T& body, std::string attachment = {}) {
    reply_raw(request, std::nullopt, encode(body), std::move(attachment));
  }
  void reply_error(const Message& request, const Error& error) { reply_raw(request, error, {}, {}); }
  /// Why nobody is reached and waiting does not mend it: the endpoint is not for this process, or not to be believed.
  Status reachable() const;
  /// The next request or reply, or nothing after `timeout`.
  std::optional<Message> receive(std::chrono::milliseconds timeout);
  int fd() const;  ///< as Subscriber::fd()

 private:
  Requester();
  Result<Message> request_raw(const std::string& command, std::string body, std::chrono::milliseconds timeout,
                              std::string attachment, const std::string& id);
  std::string send_raw(const std::string& command, std::string body, std::string attachment);
  void reply_raw(const Message& request, std::optional<Error> error, std::string body, std::string attachment);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Who has sent a message, as far as the connection tells.
struct Sender {
  Peer process;         ///< over a socket of this host's: who connected, from the kernel
  bool remote = false;  ///< over TCP: `process` is nobody
  std::string key;      ///< over TCP: the public key that was let in; empty: the port has no keys
  std::string address;  ///< over TCP: where it is
};

/// The manager's command socket. Repeated request ids are answered with the first answer, without a second execution (a
/// bounded memory of the last answers, for 60 s).
class Server {
 public:
  /// Binds for this process's user, and for `group` too. Errors: kAlreadyExists (another manager answers there: says
  /// its pid if it can), kPermission.
  static Result<std::unique_ptr<Server>> bind(zmq::context_t& context, const std::string& endpoint,
                                              std::optional<gid_t> group = std::nullopt);
  ~Server();
  /// Takes commands at a TCP port as well. Once, before fd() is asked for; `port.door` must outlive this. Every message
  /// from there is dropped unless the door admits its key at that moment; it is answered with kPermission. Errors:
  /// kInvalidArgument (no address; without keys beyond this host), kAlreadyExists, kPermission.
  Status listen(zmq::context_t& context, const TcpPort& port);

  struct Incoming {
    std::string peer;  ///< who to answer, or to send commands to later
    Sender sender;
    Message message;
  };
  /// The next well-formed request (new ones only) or reply. Malformed ones are answered with an error where possible,
  /// and counted.
  std::optional<Incoming> receive(std::chrono::milliseconds timeout);
  template <class T>
  void reply(const Incoming& request, const T& body, std::string attachment = {}) {
    reply_raw(request, std::nullopt, encode(body), std::move(attachment));
  }
  void reply_error(const Incoming& request, const Error& error) { reply_raw(request, error, {}, {}); }
  /// Sends a command to a connected peer; returns the request id. kUnavailable when the peer is gone.
  template <class C>
  Result<std::string> send(const std::string& peer, const C& command, std::string attachment = {}) {
    return send_raw(peer, C::kCommand, encode(command), std::move(attachment));
  }
  uint64_t malformed() const;
  int fd() const;  ///< as Subscriber::fd()
  /// Makes the socket's name anew, if somebody has removed it. To be called now and then; a look at the file system.
  void keep_listening();

 private:
  Server();
  void reply_raw(const Incoming& request, std::optional<Error> error, std::string body, std::string attachment);
  Result<std::string> send_raw(const std::string& peer, const std::string& command, std::string body,
                               std::string attachment);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The XSUB/XPUB broker in a thread of its own. It forwards events. It keeps the last event of every topic of a state,
/// within a bound, and sends these to late joiners. Such topics are task.state, worker.state, plugin.state,
/// training.state and training.measures. It takes no message from the events side but subscriptions.
class Broker {
 public:
  /// Binds both endpoints for this process's user, and events for `group` too. `port`: a TCP port for subscribers as
  /// well, whose door must outlive this. `nodes`: a port where nodes publish; it and its calls must outlive this, too.
  /// Of nodes only what happens on a host is taken, and of bubbles only what somebody subscribes to. Errors:
  /// kAlreadyExists, kPermission, and Server::listen()'s.
  static Result<std::unique_ptr<Broker>> start(zmq::context_t& context, const std::string& publish_endpoint,
                                               const std::string& events_endpoint,
                                               std::optional<gid_t> group = std::nullopt, const TcpPort* port = nullptr,
                                               const NodesPort* nodes = nullptr);
  ~Broker();  ///< stops and joins
  /// Ends the connections to the TCP port whose key the door admits no longer. Any thread; does not wait.
  void look_at_keys();
  /// As Server::keep_listening(), of both sockets.
  void keep_listening();

 private:
  Broker();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace freeride::bus
