#include "freeride/bus/relay.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "endpoint.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/daemon_thread.hpp"
#include "freeride/base/log.hpp"
#include "freeride/bus/commands.hpp"
#include "message.hpp"
#include "tcp.hpp"
#include "wait_fd.hpp"
#include "wishes.hpp"

namespace freeride::bus {
namespace {

constexpr int kBatch = 256;          // messages of one socket before the others are looked at
constexpr int kUpHwm = 64;           // commands that wait for the network; what does not fit is repeated
constexpr size_t kMostWorkers = 64;  // more devices than any host has
constexpr int64_t kLookNs = kNsPerSec;
constexpr size_t kPieceBytes = WritePlugin::kPieceBytes;  // what is larger comes from earlier clients
constexpr size_t kMostPieces = 4;                         // bytes in front of a heartbeat
constexpr size_t kMostWaiting = 64;                       // pieces that wait for their turn: 16 MiB
// Until an attachment without an answer counts as lost, and for each of its MiB as long again as on a slow link.
constexpr int64_t kAnswerNs = 30 * kNsPerSec, kAnswerPerMiBNs = kNsPerSec;
constexpr int64_t kPatienceNs = 3 * kNsPerSec;  // without a connection, before clients are told

bool is_workers(const std::string& command) {
  static constexpr std::array kCommands = {RegisterWorker::kCommand, WorkerReport::kCommand, FetchPlugin::kCommand,
                                           FetchState::kCommand};
  return std::find(kCommands.begin(), kCommands.end(), command) != kCommands.end();
}

}  // namespace

struct Relay::Impl {
  Impl(zmq::context_t& context, const RelayConfig& config)
      : manager(config.manager),
        events_endpoint(config.events_endpoint),
        clients(context, zmq::socket_type::router),
        up(context, zmq::socket_type::dealer),
        key(config.key),
        context(context),
        watch(context, up, config.manager, &config.key),
        events_here(context, zmq::socket_type::xsub),
        events_up(context, zmq::socket_type::xpub),
        events_there(context, zmq::socket_type::sub),
        events_down(context, zmq::socket_type::pub),
        wake(detail::event_fd()) {}

  ~Impl() {
    detail::WishesOfHost::follow(events_endpoint, nullptr);
    if (!thread.joinable()) return;
    stop = true;
    wake_up();
    thread.join();
  }

  void wake_up() {
    const uint64_t one = 1;
    (void)!::write(wake.get(), &one, sizeof one);
  }

  void run() {
    std::vector<zmq::pollitem_t> items = {
        {clients.handle(), 0, ZMQ_POLLIN, 0},        {up.handle(), 0, ZMQ_POLLIN, 0},
        {watch.socket().handle(), 0, ZMQ_POLLIN, 0}, {events_here.handle(), 0, ZMQ_POLLIN, 0},
        {events_up.handle(), 0, ZMQ_POLLIN, 0},      {events_there.handle(), 0, ZMQ_POLLIN, 0},
        {nullptr, wake.get(), ZMQ_POLLIN, 0}};
    const size_t always = items.size();
    while (!stop) {
      try {
        items.resize(always);
        if (large) items.push_back({large->handle(), 0, ZMQ_POLLIN, 0});
        zmq::poll(items.data(), items.size(), std::chrono::milliseconds(kLookNs / kNsPerMs));
        if (items[6].revents != 0) woken();
        look_at_link();
        from_clients();
        from_manager(up);
        if (large) from_manager(*large);
        send_waiting();
        if (large && !large_under_way() && SteadyClock::now() > large_until_ns) large.reset();
        take_subscriptions();
        forward(events_here, events_up);
        forward(events_there, events_down);
      } catch (const zmq::error_t& error) {
        if (!detail::goes_on(error)) return;
      } catch (const std::bad_alloc&) {
        spdlog::warn("there is no memory left for a message: it is dropped, and its sender repeats it");
      }
    }
  }

  void woken() {
    uint64_t count = 0;
    (void)!::read(wake.get(), &count, sizeof count);
    if (stop) return;
    lock.keep_named(clients);
    ask_manager();
  }

  // With many hosts, saying everything to each would be most of a manager's work: it says what somebody here wants.
  void ask_manager() {
    std::set<std::string> wanted = detail::WishesOfHost::get(events_endpoint);
    for (const std::string& prefix : wanted) {
      if (asked.count(prefix) == 0) events_there.set(zmq::sockopt::subscribe, prefix);
    }
    for (const std::string& prefix : asked) {
      if (wanted.count(prefix) == 0) events_there.set(zmq::sockopt::unsubscribe, prefix);
    }
    asked = std::move(wanted);
  }

  // ---- the link
  void look_at_link() {
    standing = watch.look();
    // What was under way over a connection before is lost, or its answer is.
    if (std::exchange(connections, watch.connections()) != watch.connections()) {
      under_way.clear();
      waiting.clear();
    }
    if (watch.connected()) {
      if (!std::exchange(was_connected, true)) spdlog::info("connected with the manager at {}", manager);
      apart_since_ns = 0;
      said.clear();
      return;
    }
    if (apart_since_ns == 0) apart_since_ns = SteadyClock::now();
    if (std::exchange(was_connected, false))
      spdlog::warn("the connection with the manager at {} is lost; side tasks continue until their orders expire",
                   manager);
    if (!standing.ok() && standing.error().text() != said) {
      said = standing.error().text();
      spdlog::error("{}; it is tried again", said);
    }
  }

  // Why no request gets there now; fine while one should be repeated.
  Status hopeless() const {
    if (watch.connected()) return {};
    if (!standing.ok()) return standing;
    if (SteadyClock::now() - apart_since_ns < kPatienceNs) return {};
    return Error{Code::kUnavailable, "this host's node does not reach the manager at " + manager,
                 "is it running there with --listen? freeride-node's log says more"};
  }

  // ---- commands
  void from_clients() {
    detail::Frames frames;
    bool too_many = false;
    for (int i = 0; i < kBatch && detail::receive_frames(clients, frames, too_many, 3); ++i) {
      if (frames.size() >= 2) hand_up(frames, too_many);
    }
  }

  void hand_up(detail::Frames& frames, bool too_many) {
    const std::string client = frames[0].to_string();
    const Peer peer = detail::peer_of(frames.back());
    Result<Message> message =
        too_many ? Result<Message>(Error{Code::kInvalidArgument,
                                         "malformed command: one frame and at most one attachment are expected",
                                         "see bus/WIRE.md"})
                 : detail::unpack_message(detail::view(frames[1]), {});
    if (!message) {
      const detail::Salvaged salvaged = detail::salvage(detail::view(frames[1]));
      if (!salvaged.id.empty() && salvaged.is_request) refuse(client, salvaged.id, salvaged.command, message.error());
      return;
    }
    const bool worker = !message->is_reply && is_trusted_user(peer.uid) && is_worker(client, message->command);
    if (!message->is_reply) {
      if (!worker && is_workers(message->command)) {
        return refuse(
            client, message->id, message->command,
            {Code::kPermission, "this node takes '" + message->command + "' from workers of root and its own user only",
             "run the worker as one of these"});
      }
      message->uid = worker ? std::nullopt : std::optional<uint32_t>(peer.uid);
      if (Status lost = hopeless(); !lost && !worker)
        return refuse(client, message->id, message->command, lost.error());
    }
    detail::Frames out;
    out.push_back(detail::frame_of(detail::relay_address(client)));
    out.push_back(detail::frame_of(detail::pack_message(*message)));
    if (out.back().size() > detail::kTcpFrameBytes) {
      if (!message->is_reply) {
        refuse(client, message->id, message->command,
               {Code::kInvalidArgument, message->command + " is larger than a command may be over TCP",
                "run freeride-ctl on the manager's host"});
      }
      return;
    }
    const std::string_view attachment = frames.size() == 3 ? detail::view(frames[2]) : std::string_view();
    const bool in_turn = !message->is_reply && !attachment.empty();
    const std::string sent_as = client + message->id;
    if (in_turn) {
      if (is_under_way(sent_as)) return;  // a repetition
      if (auto room = room_for(attachment.size(), peer.uid); !room)
        return refuse(client, message->id, message->command, room.error());
    }
    for (std::string_view rest = attachment; !rest.empty();
         rest.remove_prefix(std::min(detail::kTcpFrameBytes, rest.size())))
      out.push_back(detail::frame_of(rest.substr(0, detail::kTcpFrameBytes)));
    if (!in_turn) return (void)detail::send_frames(up, std::move(out));
    const bool is_large = attachment.size() > kPieceBytes;
    under_way[sent_as] = {
        is_large, SteadyClock::now() + kAnswerNs + static_cast<int64_t>(attachment.size() >> 20) * kAnswerPerMiBNs};
    if (!is_large) {
      waiting.push_back({sent_as, peer.uid, std::move(out)});
      send_waiting();
    } else if (!detail::send_frames(connect_large(), std::move(out))) {
      under_way.erase(sent_as);
    }
  }

  // Nothing waits behind attachments for long: a few pieces are under way at once, and the others wait here for their
  // turn, in the order in which they have come. One that is larger has a connection of its own. Error: kExhausted.
  Status room_for(size_t bytes, uid_t uid) const {
    if (bytes > kPieceBytes) {
      if (!large_under_way()) return {};
      return Error{Code::kExhausted, "another large attachment is on its way through this host's node",
                   "try again when it is there, or use a freeride-ctl of the node's version: it sends pieces"};
    }
    const auto of_user = std::count_if(waiting.begin(), waiting.end(), [uid](const auto& w) { return w.uid == uid; });
    if (waiting.size() < kMostWaiting && static_cast<size_t>(of_user) < kMostWaiting / 2) return {};
    return Error{Code::kExhausted, "too many attachments wait in this host's node", "try again in a minute"};
  }

  void send_waiting() {
    while (!waiting.empty() && under_way.size() < waiting.size() + kMostPieces + (large_under_way() ? 1 : 0)) {
      Waiting next = std::move(waiting.front());
      waiting.pop_front();
      // Where the time of its answer is over its sender has given it up, or repeats it.
      if (under_way.count(next.sent_as) != 0 && !detail::send_frames(up, std::move(next.frames)))
        under_way.erase(next.sent_as);
    }
  }

  bool is_under_way(const std::string& sent_as) {
    const int64_t now = SteadyClock::now();
    std::erase_if(under_way, [&](const auto& entry) { return now > entry.second.until_ns; });
    return under_way.count(sent_as) != 0;
  }

  bool large_under_way() const {
    return std::any_of(under_way.begin(), under_way.end(), [](const auto& entry) { return entry.second.large; });
  }

  zmq::socket_t& connect_large() {
    large_until_ns = SteadyClock::now() + kAnswerNs;
    if (!large) {
      large.emplace(context, zmq::socket_type::dealer);
      prepare_way_up(*large, key);
      connect_endpoint(*large, manager);
    }
    return *large;
  }

  // What cannot be sent now is not sent later: its sender repeats it, or has given it up.
  static void prepare_way_up(zmq::socket_t& socket, const ClientKey& key) {
    socket.set(zmq::sockopt::immediate, true);
    socket.set(zmq::sockopt::sndhwm, kUpHwm);
    socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxCommandFrameBytes));
    socket.set(zmq::sockopt::linger, detail::kLingerMs);
    detail::set_client_key(socket, &key);
    detail::set_long_link(socket);
  }

  // A worker is known by what it asks for first; what it asks for later is a worker's, too.
  bool is_worker(const std::string& client, const std::string& command) {
    if (workers.count(client) != 0) return true;
    if (!is_workers(command)) return false;
    if (workers.size() >= kMostWorkers) workers.clear();  // of connections that have ended; the others say it again
    workers.insert(client);
    return true;
  }

  void refuse(const std::string& client, const std::string& id, const std::string& command, const Error& error) {
    Message reply;
    reply.is_reply = true;
    reply.id = id;
    reply.command = command.empty() ? "unknown" : command;
    reply.error = error;
    detail::Frames frames;
    frames.push_back(detail::frame_of(client));
    frames.push_back(detail::frame_of(detail::pack_message(reply)));
    (void)detail::send_frames(clients, std::move(frames));
  }

  void from_manager(zmq::socket_t& from) {
    detail::Frames frames;
    bool too_many = false;
    for (int i = 0; i < kBatch && detail::receive_frames(from, frames, too_many, detail::kMaxTcpFrames); ++i) {
      if (frames.size() < 2 || too_many || !detail::is_relay_address(detail::view(frames[0]))) continue;
      frames[0] = detail::frame_of(detail::view(frames[0]).substr(1));
      if (!under_way.empty()) under_way.erase(frames[0].to_string() + detail::salvage(detail::view(frames[1])).id);
      (void)detail::send_frames(clients, std::move(frames));  // who is gone repeats its request
    }
  }

  // ---- events
  // A manager that has come (back) asks for what it wants. What is kept is said to it again, so the broker of this host
  // is asked anew.
  void take_subscriptions() {
    detail::Frames frames;
    bool too_many = false;
    while (detail::receive_frames(events_up, frames, too_many)) {
      const std::string_view frame = detail::view(frames.front());
      if (frames.size() != 1 || frame.empty() || static_cast<unsigned char>(frame[0]) > 1) continue;
      const std::string prefix(frame.substr(1));
      if (wanted.erase(prefix) != 0) subscribe(prefix, false);
      if (frame[0] == 1 && wanted.insert(prefix).second) subscribe(prefix, true);
    }
  }

  void subscribe(const std::string& prefix, bool wants) {
    events_here.send(detail::frame_of(std::string(1, wants ? '\1' : '\0') + prefix), zmq::send_flags::dontwait);
  }

  static void forward(zmq::socket_t& from, zmq::socket_t& to) {
    detail::Frames frames;
    bool too_many = false;
    for (int i = 0; i < kBatch && detail::receive_frames(from, frames, too_many, 2); ++i) {
      if (frames.size() == 2 && !too_many) (void)detail::send_frames(to, std::move(frames));
    }
  }

  const std::string manager, events_endpoint;
  EndpointLock lock;  // before the socket: released after it is closed
  zmq::socket_t clients, up;
  const ClientKey key;
  zmq::context_t& context;
  std::optional<zmq::socket_t> large;  // the way up for large attachments, while there are any
  int64_t large_until_ns = 0;
  struct UnderWay {
    bool large = false;
    int64_t until_ns = 0;
  };
  // Requests with attachments, by client and id, with those that wait for their turn.
  std::map<std::string, UnderWay> under_way;
  struct Waiting {
    std::string sent_as;
    uid_t uid = 0;
    detail::Frames frames;
  };
  std::deque<Waiting> waiting;
  detail::HandshakeWatch watch;
  zmq::socket_t events_here, events_up, events_there, events_down;
  Fd wake;
  std::atomic<bool> stop = false;
  std::set<std::string> workers, wanted, asked;
  Status standing;
  std::string said;
  bool was_connected = false;
  uint64_t connections = 0;
  int64_t apart_since_ns = 0;
  std::thread thread;
};

Relay::Relay() = default;
Relay::~Relay() = default;

void Relay::keep_listening() {
  if (!impl_->lock.named()) impl_->wake_up();
}

Result<std::unique_ptr<Relay>> Relay::start(zmq::context_t& context, const RelayConfig& config) {
  if (auto known = detail::check_tcp_host(config.manager); !known) return known.error();
  const auto events = events_port_of(config.manager), nodes = nodes_port_of(config.manager);
  if (!nodes) return nodes.error();
  std::unique_ptr<Relay> relay(new Relay);
  try {
    relay->impl_ = std::make_unique<Impl>(context, config);
    Impl& impl = *relay->impl_;
    impl.clients.set(zmq::sockopt::linger, detail::kLingerMs);
    impl.clients.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxCommandFrameBytes));
    impl.clients.set(zmq::sockopt::router_mandatory, true);
    impl.clients.set(zmq::sockopt::rcvhwm, detail::kRequestsHwm);
    auto lock = bind_endpoint(impl.clients, config.commands_endpoint, config.group);
    if (!lock) return lock.error();
    impl.lock = std::move(*lock);
    Impl::prepare_way_up(impl.up, config.key);
    impl.events_up.set(zmq::sockopt::xpub_verbose, true);
    impl.events_up.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxTopicBytes));
    impl.events_there.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(detail::kMaxEventBytes));
    for (zmq::socket_t* socket : {&impl.events_up, &impl.events_down})
      socket->set(zmq::sockopt::sndhwm, detail::kEventsHwm);
    for (zmq::socket_t* socket : {&impl.events_here, &impl.events_there})
      socket->set(zmq::sockopt::rcvhwm, detail::kEventsHwm);
    for (zmq::socket_t* socket : {&impl.events_here, &impl.events_up, &impl.events_there, &impl.events_down})
      socket->set(zmq::sockopt::linger, detail::kLingerMs);
    for (zmq::socket_t* socket : {&impl.events_up, &impl.events_there}) {
      detail::set_client_key(*socket, &config.key);
      detail::set_long_link(*socket);
    }
    connect_endpoint(impl.up, config.manager);
    connect_endpoint(impl.events_there, *events);
    connect_endpoint(impl.events_up, *nodes);
    connect_endpoint(impl.events_here, config.events_endpoint);
    connect_endpoint(impl.events_down, config.publish_endpoint);
    impl.ask_manager();
    detail::WishesOfHost::follow(config.events_endpoint, [&impl] { impl.wake_up(); });
    impl.wake_up();  // for what was wanted in between
    impl.thread = std::thread([&impl] { run_or_end("the way to the manager", [&impl] { impl.run(); }); });
  } catch (const zmq::error_t& error) {
    return detail::socket_error("cannot connect to " + config.manager, error, "check --manager");
  } catch (const std::system_error& error) {
    return Error{Code::kExhausted, std::string("cannot start the way to the manager: ") + error.what(), ""};
  }
  return relay;
}

}  // namespace freeride::bus
