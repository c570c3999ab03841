#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "endpoint.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/daemon_thread.hpp"
#include "freeride/base/log.hpp"
#include "freeride/bus/bounds.hpp"
#include "freeride/bus/sockets.hpp"
#include "gate.hpp"
#include "kept.hpp"
#include "message.hpp"
#include "subscription_limit.hpp"
#include "tcp.hpp"
#include "wait_fd.hpp"
#include "wishes.hpp"

namespace freeride::bus {
namespace {

constexpr int kBatch = 256;  // events forwarded before subscriptions are looked at again
constexpr size_t kMaxPendingPrefixes = 32;
// A replay goes to every subscriber of its topics, and anybody may subscribe: at most a few percent of the time goes
// into replays.
constexpr int64_t kReplayPauseNs = 2 * kNsPerMs, kReplayPausePerTopicNs = 50 * kNsPerUs;

constexpr size_t kMostTcpBytes = 4096;  // a frame of a subscriber's: a subscription, or a step of the handshake
constexpr int64_t kReadersLookNs = 100 * kNsPerMs;
constexpr int kLooksPerLookAtAll = 10;

}  // namespace

// XSUB subscribes to everything for good. Forwarding the subscribers' own would spare publishers work, but XPUB passes
// on any "unsubscribe", also one for what its sender never subscribed to: one lying monitor could cut everybody off.
struct Broker::Impl {
  Impl(zmq::context_t& context)
      : in(context, zmq::socket_type::xsub), out(context, zmq::socket_type::xpub), wake(detail::event_fd()) {}

  ~Impl() {
    if (thread.joinable()) {
      stop = true;
      wake_up();
      thread.join();
    }
  }

  void wake_up() {
    const uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
  }

  // The TCP port has a socket of its own: what comes out of it has come from the network.
  struct Network {
    Network(zmq::context_t& context, const Doorkeeper* keys) : socket(context, zmq::socket_type::xpub), door(keys) {}
    detail::TcpListener listener;  // before the socket: released after it is closed
    zmq::socket_t socket;
    const Doorkeeper* door;
    std::map<int, std::string> keys;  // of connections that have subscribed, by descriptor
    detail::Wishes wishes{detail::of_bubbles()};
  };

  // What nodes publish comes out of a socket of its own, too.
  struct Nodes {
    Nodes(zmq::context_t& context, const NodesPort& port)
        : socket(context, zmq::socket_type::xsub), may_publish(port.may_publish) {}
    detail::TcpListener listener;
    zmq::socket_t socket;
    std::function<bool(const std::string&)> may_publish;
    std::set<std::string> asked;  // prefixes of bubbles' topics
    bool warned = false;
  };

  // What wakes the thread is its end, a socket's name that is gone, or a key that is.
  bool woken() {
    uint64_t count = 0;
    (void)!::read(wake.get(), &count, sizeof count);
    if (stop) return false;
    in_lock.keep_named(in);
    out_lock.keep_named(out);
    if (network && network->door != nullptr && look_at_keys.exchange(false)) hang_up_revoked();
    return true;
  }

  // Of a connection that has not subscribed nobody knows the key: it goes too, and comes again if it may.
  void hang_up_revoked() {
    const auto admitted = [this](int fd) {
      const auto key = network->keys.find(fd);
      return key != network->keys.end() && network->door->admits(key->second);
    };
    const size_t closed = detail::Gate::instance().hang_up_unless(network->listener.endpoint(), admitted);
    if (closed > 0)
      spdlog::info("keys have changed: {} connections to {} are ended", closed, network->listener.endpoint());
  }

  void run() {
    zmq::pollitem_t items[] = {{out.handle(), 0, ZMQ_POLLIN, 0},
                               {in.handle(), 0, ZMQ_POLLIN, 0},
                               {nullptr, wake.get(), ZMQ_POLLIN, 0},
                               {network ? network->socket.handle() : nullptr, -1, ZMQ_POLLIN, 0},
                               {nodes ? nodes->socket.handle() : nullptr, -1, ZMQ_POLLIN, 0}};
    const size_t count = nodes ? 5 : network ? 4 : 3;
    for (;;) {
      try {
        zmq::poll(items, count,
                  std::chrono::milliseconds(pending.empty() ? -1 : detail::milliseconds_until(replay_at)));
        if (items[2].revents != 0 && !woken()) return;
        if (items[0].revents != 0) take_subscriptions(out);
        if (network && items[3].revents != 0) take_subscriptions(network->socket);
        if (nodes && items[4].revents != 0) forward(nodes->socket);
        if (items[1].revents != 0) forward(in);
        if (items[1].revents != 0 || (nodes && items[4].revents != 0)) look_at_readers();
        if (!pending.empty() && SteadyClock::now() >= replay_at) replay();
      } catch (const zmq::error_t& error) {
        if (!detail::goes_on(error)) return;
      }
    }
  }

  // One message a subscriber sent: a subscription; anything else is thrown away.
  void take_subscriptions(zmq::socket_t& from) {
    detail::Frames frames;
    bool too_many = false;
    for (int i = 0; i < kBatch && detail::receive_frames(from, frames, too_many); ++i) {
      const std::string_view frame = detail::view(frames.front());
      if (frames.size() != 1 || frame.empty() || static_cast<unsigned char>(frame[0]) > 1) continue;
      const int connection = ::zmq_msg_get(frames.front().handle(), ZMQ_SRCFD);
      const bool remote = network && &from == &network->socket;
      detail::Wishes& its = remote ? network->wishes : wishes;
      if (frame[0] == 0) {
        its.drop(frame.substr(1), connection);
        if (!remote) of_manager.drop(frame.substr(1), connection);
        continue;
      }
      if (remote && !admit(frames.front(), connection)) continue;
      its.add(frame.substr(1), connection);
      if (!remote) of_manager.add(frame.substr(1), connection);
      for (const int fd : limit.add(connection, frame.size())) {
        if (hang_up(fd)) spdlog::warn("a subscriber of events has subscribed to too much and is disconnected");
      }
      if (pending.empty()) replay_at = std::max(SteadyClock::now(), next_replay_at);
      pending.insert(std::string(frame.substr(1)));
      if (pending.size() > kMaxPendingPrefixes) pending = {""};  // the empty prefix: everything
    }
    if (nodes) ask_nodes();
    ask_manager();
  }

  // A node's relay asks its manager for what somebody here listens to. What nobody listens to any more is not kept
  // either: it would be old when somebody comes.
  void ask_manager() {
    std::set<std::string> wanted = of_manager.wanted();
    if (wanted == asked_of_manager) return;
    asked_of_manager = wanted;
    kept.forget_if([&](const std::string& topic) { return is_unasked(topic); });
    detail::WishesOfHost::set(events_endpoint, std::move(wanted));
  }

  // Of a manager elsewhere, and wanted by nobody here: what still comes of it was under way, and may be the last for
  // long.
  bool is_unasked(std::string_view topic) const {
    const auto has = [&](const auto& prefixes) {
      return std::any_of(prefixes.begin(), prefixes.end(),
                         [&](const std::string& one) { return topic.starts_with(one); });
    };
    return !has(asked_of_manager) && has(detail::always_of_managers()) &&
           detail::WishesOfHost::followed(events_endpoint);
  }

  // Bubbles are many: nodes send those that somebody here subscribes to.
  void ask_nodes() {
    std::set<std::string> wanted = wishes.wanted();
    if (network) wanted.merge(network->wishes.wanted());
    for (const std::string& prefix : wanted) {
      if (nodes->asked.count(prefix) == 0) nodes->socket.send(detail::frame_of("\x01" + prefix), zmq::send_flags::none);
    }
    for (const std::string& prefix : nodes->asked) {
      if (wanted.count(prefix) == 0)
        nodes->socket.send(detail::frame_of(std::string(1, '\0') + prefix), zmq::send_flags::none);
    }
    nodes->asked = std::move(wanted);
  }

  // Whether an event is one that a node may publish. `topic` has come from one.
  bool is_nodes(zmq::message_t& topic) {
    const std::string key = detail::key_of(topic);
    if (!key.empty() && nodes->may_publish(key) && detail::is_host_topic(detail::view(topic))) return true;
    if (!std::exchange(nodes->warned, true))
      spdlog::warn(
          "an event that came over the network is dropped: it is no node's to publish; nor are further ones said");
    return false;
  }

  // Whether a subscription over TCP is a key's that may hear events now; else its connection ends.
  bool admit(zmq::message_t& frame, int connection) {
    if (network->door == nullptr) return true;
    std::string key = detail::key_of(frame);
    if (!network->door->admits(key)) {
      (void)hang_up(connection);
      return false;
    }
    if (network->keys.size() >= 2 * bounds().network_connections) network->keys.clear();  // of descriptors long closed
    network->keys[connection] = std::move(key);
    return true;
  }

  bool hang_up(int connection) const {
    return detail::Gate::instance().hang_up(connection, events_endpoint) ||
           (network && detail::Gate::instance().hang_up(connection, network->listener.endpoint()));
  }

  // To the subscribers of both sockets; libzmq shares the bytes.
  void send(zmq::message_t topic, zmq::message_t payload) {
    if (network) {
      zmq::message_t topic_too, payload_too;
      topic_too.copy(topic);
      payload_too.copy(payload);
      network->socket.send(std::move(topic_too), zmq::send_flags::dontwait | zmq::send_flags::sndmore);
      network->socket.send(std::move(payload_too), zmq::send_flags::dontwait);
    }
    out.send(std::move(topic), zmq::send_flags::dontwait | zmq::send_flags::sndmore);
    out.send(std::move(payload), zmq::send_flags::dontwait);
  }

  void forward(zmq::socket_t& from) {
    for (int i = 0; i < kBatch; ++i) {
      zmq::message_t topic, payload;
      if (!from.recv(topic, zmq::recv_flags::dontwait)) return;
      bool well_formed = topic.more() && topic.size() <= detail::kMaxTopicBytes;
      bool more = topic.more();
      if (more) {
        (void)from.recv(payload, zmq::recv_flags::dontwait);  // a message's frames arrive together
        more = payload.more();
        well_formed = well_formed && !more;
      }
      while (more) {
        zmq::message_t rest;
        (void)from.recv(rest, zmq::recv_flags::dontwait);
        more = rest.more();
      }
      if (!well_formed || (&from != &in && !is_nodes(topic))) continue;
      if (detail::is_kept_topic(detail::view(topic)) && !is_unasked(detail::view(topic)))
        kept.update(detail::view(topic), detail::view(payload));
      send(std::move(topic), std::move(payload));
    }
  }

  // Whoever does not read holds a full queue of events. Nothing grows while nothing is forwarded: no timer.
  void look_at_readers() {
    const int64_t now = SteadyClock::now();
    if (now < readers_look_at) return;
    readers_look_at = now + kReadersLookNs;
    const auto look = ++readers_looks % kLooksPerLookAtAll == 0 ? detail::Gate::Look::kAll : detail::Gate::Look::kFull;
    size_t dropped = detail::Gate::instance().drop_unread(events_endpoint, look);
    if (network) dropped += detail::Gate::instance().drop_unread(network->listener.endpoint(), look);
    if (dropped > 0) spdlog::warn("{} subscribers of events have not read for seconds and are disconnected", dropped);
  }

  void replay() {
    size_t sent = 0;
    kept.for_each("", [&](const std::string& topic, const std::string& payload) {
      const bool wanted = std::any_of(pending.begin(), pending.end(), [&](const std::string& prefix) {
        return topic.compare(0, prefix.size(), prefix) == 0;
      });
      if (!wanted) return;
      if (auto marked = detail::mark_kept(payload)) {
        send(detail::frame_of(topic), detail::frame_of(*marked));
        ++sent;
      }
    });
    pending.clear();
    next_replay_at = SteadyClock::now() + kReplayPauseNs + static_cast<int64_t>(sent) * kReplayPausePerTopicNs;
  }

  EndpointLock in_lock, out_lock;  // before the sockets: released after they are closed
  zmq::socket_t in, out;
  std::unique_ptr<Network> network;
  std::unique_ptr<Nodes> nodes;
  detail::Wishes wishes{detail::of_bubbles()}, of_manager{detail::always_of_managers()};
  std::set<std::string> asked_of_manager;
  Fd wake;
  std::atomic<bool> stop = false, look_at_keys = false;
  std::string events_endpoint;
  detail::KeptStates kept{bounds().kept_topics, bounds().kept_bytes};
  detail::SubscriptionLimit limit;
  std::set<std::string> pending;  // prefixes that late joiners have asked for
  int64_t replay_at = 0, next_replay_at = 0, readers_look_at = 0;
  int readers_looks = 0;
  std::thread thread;
};

Broker::Broker() = default;
Broker::~Broker() = default;

void Broker::keep_listening() {
  if (!impl_->in_lock.named() || !impl_->out_lock.named()) impl_->wake_up();
}

void Broker::look_at_keys() {
  impl_->look_at_keys = true;
  impl_->wake_up();
}

Result<std::unique_ptr<Broker>> Broker::start(zmq::context_t& context, const std::string& publish_endpoint,
                                              const std::string& events_endpoint, std::optional<gid_t> group,
                                              const TcpPort* port, const NodesPort* nodes) {
  std::unique_ptr<Broker> broker(new Broker);
  try {
    broker->impl_ = std::make_unique<Impl>(context);
    Impl& impl = *broker->impl_;
    impl.in.set(zmq::sockopt::linger, 0);
    impl.in.set(zmq::sockopt::rcvhwm, detail::kEventsHwm);
    impl.in.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxEventBytes));
    impl.out.set(zmq::sockopt::linger, detail::kLingerMs);
    impl.out.set(zmq::sockopt::sndhwm, detail::kEventsHwm);
    impl.out.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxTopicBytes));
    impl.out.set(zmq::sockopt::xpub_verbose, true);  // every subscription is shown, not only the first of its kind
    auto in_lock = bind_endpoint(impl.in, publish_endpoint, std::nullopt);
    if (!in_lock) return in_lock.error();
    impl.in_lock = std::move(*in_lock);
    auto out_lock = bind_endpoint(impl.out, events_endpoint, group);
    if (!out_lock) return out_lock.error();
    impl.out_lock = std::move(*out_lock);
    impl.events_endpoint = events_endpoint;
    if (port != nullptr) {
      impl.network = std::make_unique<Impl::Network>(context, port->door);
      zmq::socket_t& socket = impl.network->socket;
      socket.set(zmq::sockopt::linger, detail::kLingerMs);
      socket.set(zmq::sockopt::sndhwm, detail::kEventsHwm);
      socket.set(zmq::sockopt::xpub_verbose, true);
      if (auto open = impl.network->listener.open(context, socket, *port, kMostTcpBytes); !open) return open.error();
    }
    if (nodes != nullptr) {
      impl.nodes = std::make_unique<Impl::Nodes>(context, *nodes);
      zmq::socket_t& socket = impl.nodes->socket;
      socket.set(zmq::sockopt::linger, 0);
      socket.set(zmq::sockopt::rcvhwm, detail::kEventsHwm);
      if (auto open = impl.nodes->listener.open(context, socket, nodes->port, detail::kMaxEventBytes); !open)
        return open.error();
      for (const std::string& prefix : detail::always_of_hosts())
        socket.send(detail::frame_of("\x01" + prefix), zmq::send_flags::none);
    }
    impl.in.send(zmq::message_t("\x01", 1), zmq::send_flags::none);
    impl.thread = std::thread([&impl] { run_or_end("the event broker", [&impl] { impl.run(); }); });
  } catch (const std::exception& error) {
    return Error{Code::kInternal, std::string("cannot start the event broker: ") + error.what(), ""};
  }
  return broker;
}

}  // namespace freeride::bus
