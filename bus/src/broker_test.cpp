#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "answers.hpp"
#include "freeride/bus/codec.hpp"
#include "freeride/bus/sockets.hpp"
#include "kept.hpp"
#include "message.hpp"
#include "test_util.hpp"

namespace freeride::bus {
namespace {
using test::eventually;
using test::kWatchdogMs;
using test::RunDir;
using namespace std::chrono_literals;

struct Bus {
  explicit Bus(const RunDir& dir) : publish(dir.endpoint("publish.sock")), events(dir.endpoint("events.sock")) {
    start();
  }
  void start() {
    auto started = Broker::start(context, publish, events);
    REQUIRE(started.ok());
    broker = std::move(*started);
  }
  std::unique_ptr<Publisher> publisher(const std::string& name) {
    auto connected = Publisher::connect(context, publish, name);
    REQUIRE(connected.ok());
    return std::move(*connected);
  }
  std::unique_ptr<Subscriber> subscriber(const std::vector<std::string>& prefixes) {
    auto connected = Subscriber::connect(context, events, prefixes);
    REQUIRE(connected.ok());
    return std::move(*connected);
  }
  zmq::context_t context;
  std::string publish, events;
  std::unique_ptr<Broker> broker;
};

TaskState task(const std::string& name, const std::string& state) {
  TaskState event;
  event.task = name;
  event.state = state;
  return event;
}

// Publishes until `subscriber` hears something: then publisher, broker and subscriber are connected.
void connect_through(Publisher& publisher, Subscriber& subscriber) {
  REQUIRE(eventually([&] {
    publisher.publish(BubbleBegin{});
    return subscriber.receive(5ms).has_value();
  }));
  while (subscriber.receive(50ms)) {
  }
}

// libzmq counts what was read, but not noted yet, as queued: see Publisher.
TEST_CASE("no event is dropped while fewer than half of what a queue holds are under way") {
  constexpr uint64_t kEvents = 100'000, kUnderWay = detail::kEventsHwm / 2 - 200;
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("test");
  auto subscriber = bus.subscriber({""});
  connect_through(*publisher, *subscriber);
  std::atomic<uint64_t> received{0};
  std::thread reading([&] {
    while (received < kEvents && subscriber->receive(kWatchdogMs)) {
      ++received;
      received.notify_one();
      if (subscriber->lost() != 0) break;
    }
    received = kEvents;
    received.notify_one();
  });
  for (uint64_t i = 0; i < kEvents; ++i) {
    for (uint64_t done = received; i - std::min(done, i) >= kUnderWay; done = received) received.wait(done);
    publisher->publish(BubbleEnd{});
  }
  reading.join();
  CHECK(subscriber->lost() == 0);
}

TEST_CASE("events arrive whole, in order and without gaps") {
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("test");
  auto subscriber = bus.subscriber({""});
  connect_through(*publisher, *subscriber);
  for (uint64_t i = 0; i < 1000; ++i) {
    BubbleEnd event;
    event.job = "gpt";
    event.rank = 3;
    event.iteration = i;
    publisher->publish(event);
  }
  uint64_t seq = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    auto event = subscriber->receive(kWatchdogMs);
    REQUIRE(event.has_value());
    CHECK(event->topic == "bubble.end/gpt/3");
    CHECK(event->is(BubbleEnd::kTopic));
    CHECK(event->as<BubbleEnd>()->iteration == i);
    CHECK(event->envelope.source == publisher->source());
    if (seq != 0) CHECK(event->envelope.seq == seq + 1);
    seq = event->envelope.seq;
  }
  CHECK(subscriber->lost() == 0);
  CHECK(subscriber->malformed() == 0);
}

TEST_CASE("a gap in a source's numbers is counted as loss") {
  RunDir dir;
  Bus bus(dir);
  zmq::socket_t raw(bus.context, zmq::socket_type::pub);
  raw.set(zmq::sockopt::linger, 0);
  raw.connect(bus.publish);
  auto subscriber = bus.subscriber({""});
  const auto say = [&](uint64_t seq) {
    Envelope envelope;
    envelope.source = "liar";
    envelope.seq = seq;
    raw.send(zmq::str_buffer("bubble.begin/x/0"), zmq::send_flags::sndmore);
    raw.send(zmq::buffer(encode(envelope, BubbleBegin{})), zmq::send_flags::none);
  };
  uint64_t seq = 0;
  REQUIRE(eventually([&] {
    say(++seq);
    return subscriber->receive(5ms).has_value();
  }));
  while (subscriber->receive(50ms)) {
  }
  const uint64_t lost = subscriber->lost();
  say(seq + 6);
  REQUIRE(subscriber->receive(kWatchdogMs).has_value());
  CHECK(subscriber->lost() == lost + 5);
  say(seq + 3);  // old: neither news nor a loss
  say(seq + 7);
  auto event = subscriber->receive(kWatchdogMs);
  REQUIRE(event.has_value());
  CHECK(event->envelope.seq == seq + 7);
  CHECK(subscriber->lost() == lost + 5);
}

TEST_CASE("a late joiner gets the last state of every task once, and others get nothing twice") {
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("manager");
  auto early = bus.subscriber({""});
  connect_through(*publisher, *early);
  publisher->publish(task("a", "CREATED"));
  publisher->publish(task("b", "CREATED"));
  publisher->publish(task("a", "RUNNING"));
  for (int i = 0; i < 3; ++i) REQUIRE(early->receive(kWatchdogMs).has_value());

  auto late = bus.subscriber({"task.state"});
  std::map<std::string, std::string> states;
  while (states.size() < 2) {
    auto event = late->receive(kWatchdogMs);
    REQUIRE(event.has_value());
    CHECK(event->envelope.kept);
    auto state = event->as<TaskState>();
    REQUIRE(state.ok());
    CHECK(states.emplace(state->task, state->state).second);
  }
  CHECK(states == std::map<std::string, std::string>{{"a", "RUNNING"}, {"b", "CREATED"}});
  publisher->publish(task("b", "STOPPED"));
  auto event = late->receive(kWatchdogMs);
  REQUIRE(event.has_value());
  CHECK_FALSE(event->envelope.kept);
  CHECK(event->as<TaskState>()->state == "STOPPED");
  CHECK(late->lost() == 0);
  event = early->receive(kWatchdogMs);  // the replay went past it, too, and was no news
  REQUIRE(event.has_value());
  CHECK(event->as<TaskState>()->state == "STOPPED");
  CHECK(early->lost() == 0);
}

TEST_CASE("joiners one after the other all get the states") {
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("manager");
  auto first = bus.subscriber({""});
  connect_through(*publisher, *first);
  publisher->publish(task("a", "RUNNING"));
  REQUIRE(first->receive(kWatchdogMs).has_value());
  for (int i = 0; i < 50; ++i) {
    auto next = bus.subscriber({"task."});
    auto event = next->receive(kWatchdogMs);
    REQUIRE(event.has_value());
    CHECK(event->as<TaskState>()->task == "a");
  }
}

TEST_CASE("a broker started anew gets the states again from their publishers") {
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("worker");
  {
    auto before = bus.subscriber({""});
    connect_through(*publisher, *before);
    publisher->publish(task("a", "RUNNING"));
    REQUIRE(before->receive(kWatchdogMs).has_value());
  }
  bus.broker.reset();
  bus.start();
  auto after = bus.subscriber({"task.state"});
  std::optional<Event> event;
  REQUIRE(eventually([&] {
    publisher->refresh();
    event = after->receive(10ms);
    return event.has_value();
  }));
  CHECK(event->as<TaskState>()->state == "RUNNING");
}

TEST_CASE("a broker whose sockets were removed makes them again, and its connections go on") {
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("before");
  auto subscriber = bus.subscriber({""});
  connect_through(*publisher, *subscriber);
  std::filesystem::remove(dir.path / "publish.sock");
  std::filesystem::remove(dir.path / "events.sock");
  bus.broker->keep_listening();
  auto later = bus.publisher("after");
  auto late = bus.subscriber({""});
  connect_through(*later, *late);
  connect_through(*publisher, *subscriber);
}

TEST_CASE("a publisher without a broker neither blocks nor fails") {
  RunDir dir;
  zmq::context_t context;
  auto publisher = Publisher::connect(context, dir.endpoint("publish.sock"), "alone");
  REQUIRE(publisher.ok());
  for (int i = 0; i < 20'000; ++i) (*publisher)->publish(task("t" + std::to_string(i % 10), "RUNNING"));
}

TEST_CASE("a subscriber that never reads does not hold up the others") {
  RunDir dir;
  Bus bus(dir);
  auto publisher = bus.publisher("test");
  auto asleep = bus.subscriber({""});
  auto awake = bus.subscriber({""});
  connect_through(*publisher, *awake);
  uint64_t heard = 0;
  for (uint64_t i = 0; i < 60'000; ++i) {
    BubbleEnd event;
    event.iteration = i;
    publisher->publish(event);
    while (awake->receive(0ms)) ++heard;
  }
  BubbleBegin last;
  last.job = "last";
  REQUIRE(eventually([&] {
    publisher->publish(last);
    while (auto event = awake->receive(5ms)) {
      ++heard;
      if (event->topic == "bubble.begin/last/0") return true;
    }
    return false;
  }));
  CHECK(heard > 0);
}

TEST_CASE("endpoints have their modes from the start, whatever the umask") {
  RunDir dir;
  const mode_t old = ::umask(0);
  RunDir open_dir;
  ::umask(0077);
  zmq::context_t context;
  const auto in_new_folder = [&](const char* name) { return "ipc://" + (dir.path / "run" / name).string(); };
  {
    auto broker = Broker::start(context, in_new_folder("publish.sock"), in_new_folder("events.sock"));
    auto server = Server::bind(context, in_new_folder("commands.sock"));
    ::umask(old);
    REQUIRE(broker.ok());
    REQUIRE(server.ok());
    const auto mode = [&](const char* name) {
      struct stat info = {};
      REQUIRE(::stat((dir.path / "run" / name).c_str(), &info) == 0);
      return info.st_mode & 0777;
    };
    CHECK(mode("publish.sock") == 0600);
    CHECK(mode("events.sock") == 0600);
    CHECK(mode("commands.sock") == 0600);
    CHECK(mode(".") == 0755);
    auto second = Broker::start(context, in_new_folder("publish.sock"), in_new_folder("events.sock"));
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == Code::kAlreadyExists);
  }
  std::filesystem::permissions(open_dir.path, std::filesystem::perms::all);
  auto refused = Server::bind(context, open_dir.endpoint("c.sock"));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kPermission);
  CHECK_FALSE(Server::bind(context, "tcp://127.0.0.1:5555").ok());
  CHECK_FALSE(Server::bind(context, dir.endpoint(std::string(120, 'x'))).ok());
  CHECK_FALSE(Server::bind(context, "ipc:///proc/nowhere/c.sock").ok());
}

TEST_CASE("kept states are bounded in number and bytes; what changed last stays") {
  detail::KeptStates kept(3, 100);
  for (const char* topic : {"task.state/a", "task.state/b", "task.state/c", "task.state/a", "task.state/d"})
    kept.update(topic, "1");
  std::string order;
  kept.for_each("task.", [&](const std::string& topic, const std::string&) { order += topic.back(); });
  CHECK(order == "cad");
  kept.update("task.state/e", std::string(80, 'x'));
  CHECK(kept.size() == 1);
  CHECK(kept.bytes() == 92);
  TaskState task;
  task.task = "e", task.state = TaskState::kRemoved;
  kept.update("task.state/f", encode(task));
  CHECK(kept.size() == 1);
  kept.update("task.state/e", encode(task));
  CHECK(kept.size() == 0);
  CHECK(kept.bytes() == 0);
  task.state = "STOPPED", task.reason = TaskState::kRemoved;
  kept.update("task.state/e", encode(task));
  CHECK(kept.size() == 1);
  BatchState batch;
  batch.state = "finished";
  detail::KeptStates batches;
  batches.update("batch.state/score", encode(batch));
  CHECK(batches.size() == 1);
  batch.state = BatchState::kRemoved;
  batches.update("batch.state/score", encode(batch));
  CHECK(batches.size() == 0);
  CHECK(detail::is_kept_topic("training.measures/gpt"));
  CHECK_FALSE(detail::is_kept_topic("training.measuresx/gpt"));
  CHECK_FALSE(detail::is_kept_topic("task.progress/a"));
  CHECK_FALSE(detail::mark_kept("garbage").has_value());
}

TEST_CASE("remembered answers are bounded, expire, and follow their client") {
  using Known = detail::Answers::Known;
  detail::Answers answers(3, 1000);
  CHECK(answers.note("1", "p", 0) == Known::kNew);
  CHECK(answers.note("1", "q", 1) == Known::kInProgress);
  CHECK(answers.peer("1", "p") == "q");
  answers.answered("1", "done", false);
  CHECK(answers.note("1", "r", 2) == Known::kAnswered);
  CHECK(answers.answer("1") == "done");
  CHECK(answers.note("2", "p", 3) == Known::kNew);
  answers.answered("2", "bytes", true);  // with an attachment: executed again if repeated
  CHECK(answers.note("2", "p", 4) == Known::kNew);
  CHECK(answers.note("3", "p", 5) == Known::kNew);
  CHECK(answers.note("4", "p", 6) == Known::kNew);
  CHECK(answers.size() == 3);
  CHECK(answers.note("1", "p", 7) == Known::kNew);  // the oldest made room
  CHECK(answers.note("3", "p", detail::Answers::kLifeNs + 100) == Known::kNew);
  CHECK(answers.size() == 1);
  answers.answered("3", std::string(2000, 'x'), false);
  CHECK(answers.bytes() <= 1000);
}

}  // namespace
}  // namespace freeride::bus
