// A host whose manager is elsewhere: what its clients see, and what the manager does.
#include "freeride/bus/relay.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "freeride/base/fd.hpp"
#include "freeride/bus/events.hpp"
#include "freeride/bus/sockets.hpp"
#include "message.hpp"
#include "test_util.hpp"
#include "wishes.hpp"

namespace freeride::bus {
namespace {
using test::eventually;
using test::kWatchdogMs;
using test::RunDir;
using namespace std::chrono_literals;

bool is_free(uint16_t port) {
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

uint16_t three_free_ports() {
  for (uint16_t port = 20'000 + ::getpid() % 10'000;; port += 3) {
    if (is_free(port) && is_free(port + 1) && is_free(port + 2)) return port;
  }
}

struct Manager {
  Manager() {
    auto started = Doorkeeper::start(context, keys.secret_key, [this](const std::string& key) {
      const std::lock_guard lock(mutex);
      return admitted.count(key) != 0;
    });
    REQUIRE(started.ok());
    door = std::move(*started);
    server = Server::bind(context, dir.endpoint("commands.sock")).value();
    REQUIRE(server->listen(context, {address, door.get()}).ok());
    const TcpPort events{events_port_of(address).value(), door.get()};
    const NodesPort nodes{{nodes_port_of(address).value(), door.get()}, [this](const std::string& key) {
                            const std::lock_guard lock(mutex);
                            return nodes_keys.count(key) != 0;
                          }};
    auto broke = Broker::start(context, dir.endpoint("publish.sock"), dir.endpoint("events.sock"), std::nullopt,
                               &events, &nodes);
    REQUIRE(broke.ok());
    broker = std::move(*broke);
    thread = std::thread([this] {
      while (!stop) {
        auto incoming = server->receive(10ms);
        if (!incoming) continue;
        const std::lock_guard lock(mutex);
        if (incoming->message.is_reply) {
          replies.push_back(*incoming);
        } else {
          requests.push_back(*incoming);
          server->reply(*incoming, LogReply{incoming->peer}, incoming->message.attachment);
          if (incoming->message.command == RegisterWorker::kCommand)
            (void)server->send(incoming->peer, GetLog{"of " + incoming->message.as<RegisterWorker>()->worker});
        }
      }
    });
  }
  ~Manager() {
    stop = true;
    thread.join();
  }
  ClientKey key(bool node = true) {
    const KeyPair pair = make_key_pair().value();
    const std::lock_guard lock(mutex);
    admitted.insert(pair.public_key);
    if (node) nodes_keys.insert(pair.public_key);
    return {pair.public_key, pair.secret_key, keys.public_key, "node.key"};
  }
  std::vector<Server::Incoming> seen() {
    const std::lock_guard lock(mutex);
    return requests;
  }
  std::unique_ptr<Subscriber> subscriber(const std::string& prefix) {
    return Subscriber::connect(context, dir.endpoint("events.sock"), {prefix}).value();
  }

  RunDir dir;
  zmq::context_t context;
  const KeyPair keys = make_key_pair().value();
  const std::string address = "tcp://127.0.0.1:" + std::to_string(three_free_ports());
  std::mutex mutex;
  std::set<std::string> admitted, nodes_keys;
  std::vector<Server::Incoming> requests, replies;
  std::unique_ptr<Doorkeeper> door;  // before what listens
  std::unique_ptr<Server> server;
  std::unique_ptr<Broker> broker;
  std::atomic<bool> stop = false;
  std::thread thread;
};

struct Host {
  Host(const std::string& manager, ClientKey the_key) : key(std::move(the_key)) {
    broker = Broker::start(context, dir.endpoint("publish.sock"), dir.endpoint("events.sock")).value();
    const RelayConfig config{
        manager,     key, dir.endpoint("commands.sock"), dir.endpoint("publish.sock"), dir.endpoint("events.sock"),
        std::nullopt};
    auto started = Relay::start(context, config);
    REQUIRE(started.ok());
    relay = std::move(*started);
  }
  std::unique_ptr<Requester> client() { return Requester::connect(context, dir.endpoint("commands.sock")).value(); }

  RunDir dir;
  zmq::context_t context;
  ClientKey key;
  std::unique_ptr<Broker> broker;
  std::unique_ptr<Relay> relay;
};

TEST_CASE("relay: requests are their user's by the kernel's word, and answers find their client", "[relay]") {
  Manager manager;
  Host host(manager.address, manager.key());
  auto one = host.client(), other = host.client();
  one->speak_for(4242);  // says who
  const auto first = one->request(GetStatus{}, kWatchdogMs), second = other->request(GetStatus{}, kWatchdogMs);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->as<LogReply>()->text != second->as<LogReply>()->text);
  for (const auto& request : manager.seen()) {
    CHECK(request.sender.remote);
    CHECK(request.sender.key == host.key.public_key);
    CHECK(request.message.uid == ::getuid());
  }
}

TEST_CASE("relay: a plugin's bytes go both ways, in frames that the network takes", "[relay]") {
  Manager manager;
  Host host(manager.address, manager.key());
  std::string bytes(9u << 20, 'x');
  for (size_t i = 0; i < bytes.size(); i += 4096) bytes[i] = static_cast<char>(i >> 12);
  const auto reply = host.client()->request(GetStatus{}, kWatchdogMs, bytes);
  REQUIRE(reply.ok());
  CHECK(reply->attachment == bytes);
}

// A manager and a client whose every message the test writes and reads itself.
struct Slow {
  Slow() {
    router.set(zmq::sockopt::linger, 0);
    router.set(zmq::sockopt::curve_server, true);
    router.set(zmq::sockopt::curve_secretkey, keys.secret_key);
    router.bind(address);
    const KeyPair pair = make_key_pair().value();
    host = std::make_unique<Host>(address, ClientKey{pair.public_key, pair.secret_key, keys.public_key, "node.key"});
    client.set(zmq::sockopt::linger, 0);
    client.connect(host->dir.endpoint("commands.sock"));
    // The link is there: what cannot be sent is dropped.
    REQUIRE(eventually([&] {
      send("begin", 0);
      return !arrived("begin", 100).empty();
    }));
    send("ready", 0);  // behind every "begin" that has come late
    REQUIRE_FALSE(arrived("ready").empty());
  }
  void send(const std::string& id, size_t attached) {
    Message message;
    message.id = id;
    message.command = "load";
    detail::Frames frames;
    frames.push_back(detail::frame_of(detail::pack_message(message)));
    if (attached > 0) frames.push_back(detail::frame_of(std::string(attached, 'x')));
    for (size_t i = 0; i < frames.size(); ++i)
      client.send(frames[i], i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  struct Arrived {
    std::string connection, client, id;
  };
  // Everything up to `last`, or until nothing has come for so long.
  std::vector<Arrived> arrived(const std::string& last, int patience_ms = 60'000) {
    std::vector<Arrived> all;
    for (;;) {
      zmq::pollitem_t item{router.handle(), 0, ZMQ_POLLIN, 0};
      if (zmq::poll(&item, 1, std::chrono::milliseconds(patience_ms)) == 0) return {};
      detail::Frames frames;
      bool too_many = false;
      if (!detail::receive_frames(router, frames, too_many, 1000) || frames.size() < 3) continue;
      all.push_back({frames[0].to_string(), frames[1].to_string(),
                     detail::unpack_message(detail::view(frames[2]), {}).value().id});
      if (all.back().id == last) return all;
    }
  }
  void answer(const Arrived& to) {
    Message reply;
    reply.is_reply = true;
    reply.id = to.id;
    reply.command = "load";
    for (const std::string& frame : {to.connection, to.client})
      router.send(detail::frame_of(frame), zmq::send_flags::sndmore);
    router.send(detail::frame_of(detail::pack_message(reply)), zmq::send_flags::none);
  }
  // What the client hears next.
  Message answered() {
    zmq::pollitem_t item{client.handle(), 0, ZMQ_POLLIN, 0};
    detail::Frames frames;
    bool too_many = false;
    REQUIRE(zmq::poll(&item, 1, std::chrono::milliseconds(60'000)) == 1);
    REQUIRE(detail::receive_frames(client, frames, too_many));
    return detail::unpack_message(detail::view(frames[0]), {}).value();
  }
  static std::vector<std::string> ids(const std::vector<Arrived>& all) {
    std::vector<std::string> ids;
    for (const Arrived& one : all) ids.push_back(one.id);
    return ids;
  }

  const KeyPair keys = make_key_pair().value();
  const std::string address = "tcp://127.0.0.1:" + std::to_string(three_free_ports());
  zmq::context_t context;
  zmq::socket_t router{context, zmq::socket_type::router}, client{context, zmq::socket_type::dealer};
  std::unique_ptr<Host> host;
};

TEST_CASE("relay: an attachment that is repeated is under way once", "[relay]") {
  Slow slow;
  for (int i = 0; i < 5; ++i) slow.send("piece", 1000);
  slow.send("behind", 0);
  const auto seen = slow.arrived("behind");
  CHECK(Slow::ids(seen) == std::vector<std::string>{"piece", "behind"});
  slow.answer(seen.front());
  // Answered: whoever asks for it once more has not heard the answer.
  CHECK(eventually([&] {
    slow.send("piece", 1000);
    slow.send("again", 0);
    return slow.arrived("again").size() == 2;
  }));
}

TEST_CASE("relay: few attachments are in front of a heartbeat", "[relay]") {
  Slow slow;
  for (int i = 0; i < 20; ++i) slow.send("piece " + std::to_string(i), 200'000);
  slow.send("heartbeat", 0);
  CHECK(slow.arrived("heartbeat").size() <= 5);
}

TEST_CASE("relay: attachments that find others on their way come in their turn, without being repeated", "[relay]") {
  Slow slow;
  std::vector<std::string> sent;
  for (int i = 0; i < 20; ++i) slow.send(sent.emplace_back("piece " + std::to_string(i)), 1000);
  for (const std::string& id : sent) {
    const auto seen = slow.arrived(id);
    REQUIRE(Slow::ids(seen) == std::vector<std::string>{id});
    slow.answer(seen.back());
  }
}

TEST_CASE("relay: who has half of all attachments that wait is told so", "[relay]") {
  Slow slow;
  for (int i = 0; i < 36; ++i) slow.send("piece " + std::to_string(i), 1000);
  slow.send("one too many", 1000);
  const auto refused = slow.answered();
  CHECK(refused.id == "one too many");
  REQUIRE(refused.error.has_value());
  CHECK(refused.error->code == Code::kExhausted);
}

TEST_CASE("relay: an earlier client's large attachment has a connection of its own, one at a time", "[relay]") {
  Slow slow;
  std::vector<Slow::Arrived> seen;
  CHECK(eventually([&] {  // until that connection is there
    slow.send("large", 1u << 20);
    const auto some = slow.arrived("large", 100);
    seen.insert(seen.end(), some.begin(), some.end());
    return !some.empty();
  }));
  const std::string large_way = seen.back().connection;
  slow.send("other", 1u << 20);
  slow.send("large", 1u << 20);
  slow.send("heartbeat", 0);
  const auto behind = slow.arrived("heartbeat");
  REQUIRE(Slow::ids(behind) == std::vector<std::string>{"heartbeat"});
  CHECK(behind.front().connection != large_way);
  const auto refused = slow.answered();  // and does not wait until it gives up
  CHECK(refused.id == "other");
  REQUIRE(refused.error.has_value());
  CHECK(refused.error->code == Code::kExhausted);
}

TEST_CASE("relay: workers are the node's, and get their orders each", "[relay]") {
  Manager manager;
  Host host(manager.address, manager.key());
  std::vector<std::unique_ptr<Requester>> workers;
  for (const char* name : {"gpu7:cpu-0", "gpu7:cpu-1"}) {
    workers.push_back(host.client());
    RegisterWorker registration;
    registration.worker = name;
    REQUIRE(workers.back()->request(registration, kWatchdogMs).ok());
    const auto order = workers.back()->receive(kWatchdogMs);
    REQUIRE(order.has_value());
    CHECK(order->as<GetLog>()->task == std::string("of ") + name);
    workers.back()->reply(*order, LogReply{name});
    REQUIRE(workers.back()->request(ShowTask{"t"}, kWatchdogMs).ok());
  }
  CHECK(eventually([&] {
    const std::lock_guard lock(manager.mutex);
    return manager.replies.size() == 2;
  }));
  REQUIRE(manager.seen().size() == 4);
  for (const auto& request : manager.seen()) CHECK_FALSE(request.message.uid.has_value());
}

TEST_CASE("relay: garbage and what has no manager are answered in words", "[relay]") {
  const std::string nowhere = "tcp://127.0.0.1:" + std::to_string(three_free_ports());
  const KeyPair pair = make_key_pair().value();
  Host host(nowhere, {pair.public_key, pair.secret_key, pair.public_key, "node.key"});
  auto client = host.client();
  std::string told;
  CHECK(eventually([&] {
    const auto reply = client->request(GetStatus{}, 1000ms);
    REQUIRE_FALSE(reply.ok());
    told = reply.error().message;
    return reply.error().code == Code::kUnavailable;
  }));
  CHECK(told.find(nowhere) != std::string::npos);

  zmq::socket_t raw(host.context, zmq::socket_type::dealer);
  raw.set(zmq::sockopt::linger, 0);
  raw.connect(host.dir.endpoint("commands.sock"));
  for (int i = 0; i < 100; ++i)
    raw.send(zmq::message_t(std::string(static_cast<size_t>(i) * 7, '\xc1')), zmq::send_flags::none);
  CHECK(client->request(GetStatus{}, 1000ms).error().code == Code::kUnavailable);  // and goes on
}

TEST_CASE("relay: a second one in a folder is refused, and a manager there is not disturbed", "[relay]") {
  Manager manager;
  Host host(manager.address, manager.key());
  const RelayConfig config{manager.address, host.key,       host.dir.endpoint("commands.sock"),
                           "ipc:///tmp/x",  "ipc:///tmp/y", {}};
  const auto again = Relay::start(host.context, config);
  REQUIRE_FALSE(again.ok());
  CHECK(again.error().code == Code::kAlreadyExists);
  CHECK(host.client()->request(GetStatus{}, kWatchdogMs).ok());
}

TEST_CASE("relay: a host's states go to the manager, its bubbles where somebody wants them", "[relay]") {
  Manager manager;
  Host host(manager.address, manager.key());
  auto worker = Publisher::connect(host.context, host.dir.endpoint("publish.sock"), "worker").value();
  TrainingState state;
  state.job = "gpt";
  worker->publish(state);  // before anybody listens: it is kept
  auto states = manager.subscriber("training.state/");
  CHECK(eventually([&] {
    worker->refresh();
    return states->receive(10ms).has_value();
  }));

  // Nobody has asked for bubbles yet: what was published before is not sent later.
  worker->publish(BubbleBegin{});
  BubbleEnd end;
  end.job = "gpt";
  auto bubbles = manager.subscriber("bubble.end/");
  CHECK(eventually([&] {
    worker->publish(BubbleBegin{});
    worker->publish(end);
    const auto event = bubbles->receive(10ms);
    if (event) CHECK(event->is("bubble.end"));
    return event.has_value();
  }));

  // What only a manager says does not come from a host; and comes to it.
  auto forged = manager.subscriber("task.state/");
  for (int i = 0; i < 20; ++i) worker->publish(TaskState{});
  auto said = Publisher::connect(manager.context, manager.dir.endpoint("publish.sock"), "manager").value();
  auto here = Subscriber::connect(host.context, host.dir.endpoint("events.sock"), {"worker.state/"}).value();
  WorkerState up;
  up.worker = "gpu8:cpu-0";
  CHECK(eventually([&] {
    said->publish(up);
    return here->receive(10ms).has_value();
  }));
  CHECK_FALSE(forged->receive(0ms).has_value());

  // All that a manager says comes to a host, so that who records there finds no gap in its numbers.
  auto all = Subscriber::connect(host.context, host.dir.endpoint("events.sock"), {""}).value();
  CHECK(eventually([&] {
    said->publish(up);
    const auto event = all->receive(10ms);
    return event && event->envelope.source == said->source() && !event->envelope.kept;
  }));
  said->publish(TaskState{});
  said->publish(JobMeasures{});
  said->publish(TrainingPlan{});
  said->publish(CommandDone{});
  up.worker = "the last";
  said->publish(up);
  CHECK(eventually([&] {
    const auto event = all->receive(10ms);
    return event && event->topic == "worker.state/the last";
  }));
  CHECK(all->lost() == 0);
}

TEST_CASE("relay: of a key that is no node's no event is taken", "[relay]") {
  Manager manager;
  Host liar(manager.address, manager.key(false)), host(manager.address, manager.key());
  auto states = manager.subscriber("training.state/");
  auto lies = Publisher::connect(liar.context, liar.dir.endpoint("publish.sock"), "liar").value();
  auto worker = Publisher::connect(host.context, host.dir.endpoint("publish.sock"), "worker").value();
  TrainingState lie, state;
  lie.job = "lie";
  state.job = "gpt";
  int heard = 0;
  CHECK(eventually([&] {
    lies->publish(lie);
    worker->publish(state);
    if (const auto event = states->receive(10ms)) {
      CHECK(event->topic == "training.state/gpt/0");
      ++heard;
    }
    return heard == 20;
  }));
}

TEST_CASE("relay: a host is told what its manager says while somebody there listens, and keeps no old states of it",
          "[relay]") {
  Manager manager;
  Host host(manager.address, manager.key());
  const std::string events = host.dir.endpoint("events.sock");
  CHECK(detail::WishesOfHost::get(events).empty());
  auto said = Publisher::connect(manager.context, manager.dir.endpoint("publish.sock"), "manager").value();
  TaskState task;
  task.task = "one";
  const auto hears = [&](Subscriber& there, const std::string& state) {
    return eventually([&] {
      said->publish(task);
      const auto event = there.receive(10ms);
      return event && event->topic == "task.state/one" && event->as<TaskState>()->state == state;
    });
  };
  task.state = "RUNNING";
  {
    auto there = Subscriber::connect(host.context, events, {"task.state/"}).value();
    CHECK(hears(*there, "RUNNING"));
    CHECK(detail::WishesOfHost::get(events) == std::set<std::string>{"task.state/"});
  }
  CHECK(eventually([&] { return detail::WishesOfHost::get(events).empty(); }));
  // What happened to it meanwhile nobody here has heard; nor does who comes now hear what was before.
  task.state = "PAUSED";
  auto there = Subscriber::connect(manager.context, manager.dir.endpoint("events.sock"), {"task.state/"}).value();
  CHECK(hears(*there, "PAUSED"));
  auto late = Subscriber::connect(host.context, events, {"task.state/"}).value();
  std::optional<Event> first;
  CHECK(eventually([&] {
    said->publish(task);
    first = late->receive(10ms);
    return first.has_value();
  }));
  // One of before may have been under way between the brokers; none was kept.
  CHECK((first->as<TaskState>()->state == "PAUSED" || !first->envelope.kept));
}

TEST_CASE("relay: what is wanted of bubbles follows subscriptions, not who never subscribed", "[relay]") {
  detail::Wishes wishes(detail::of_bubbles());
  CHECK(wishes.wanted().empty());
  wishes.add("task.state/", 3);
  CHECK(wishes.wanted().empty());
  wishes.add("bubble.end/gpt/", 3);
  wishes.add("bubble.end/gpt/", 4);
  CHECK(wishes.wanted() == std::set<std::string>{"bubble.end/gpt/"});
  wishes.drop("bubble.end/gpt/", 5);
  CHECK(wishes.wanted().size() == 1);
  wishes.drop("bubble.end/gpt/", 4);
  CHECK(wishes.wanted().empty());
  wishes.add("bub", 3);
  wishes.add("bubble.end/gpt/", 4);
  CHECK(wishes.wanted() == std::set<std::string>{"bubble."});
  wishes.drop("bub", -1);
  CHECK(wishes.wanted() == std::set<std::string>{"bubble.end/gpt/"});
  for (int i = 0; i < 1000; ++i) wishes.add("bubble.end/" + std::to_string(i), 7);
  CHECK(wishes.wanted() == std::set<std::string>{"bubble."});
}

}  // namespace
}  // namespace freeride::bus
