// Garbage, truncated, oversized and wrong-version messages on every socket, and well-framed ones that lie. After each,
// the honest traffic must still flow.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/bus/sockets.hpp"
#include "gate.hpp"
#include "message.hpp"
#include "subscription_limit.hpp"
#include "test_util.hpp"

namespace freeride::bus {
namespace {
using detail::Gate;
using test::eventually;
using test::kWatchdogMs;
using test::RunDir;
using namespace std::chrono_literals;

struct World {
  explicit World(std::optional<gid_t> group = std::nullopt) {
    auto started = Broker::start(context, dir.endpoint("publish.sock"), dir.endpoint("events.sock"), group);
    REQUIRE(started.ok());
    broker = std::move(*started);
    auto bound = Server::bind(context, dir.endpoint("commands.sock"), group);
    REQUIRE(bound.ok());
    server = std::move(*bound);
    thread = std::thread([this] {
      while (!stop) {
        if (auto incoming = server->receive(10ms)) server->reply(*incoming, Ack{});
      }
    });
    auto connected = Publisher::connect(context, dir.endpoint("publish.sock"), "honest");
    publisher = std::move(*connected);
    auto subscribed = Subscriber::connect(context, dir.endpoint("events.sock"), {""});
    subscriber = std::move(*subscribed);
    auto requesting = Requester::connect(context, dir.endpoint("commands.sock"));
    requester = std::move(*requesting);
    alive();
  }
  ~World() {
    stop = true;
    thread.join();
  }
  // Commands are answered and events arrive.
  void alive() {
    CHECK((*requester).request(GetStatus{}, kWatchdogMs).ok());
    CHECK(eventually([&] {
      publisher->publish(BubbleBegin{});
      while (auto event = subscriber->receive(5ms)) {
        if (event->envelope.source == publisher->source()) return true;
      }
      return false;
    }));
  }
  zmq::socket_t raw(zmq::socket_type type, const char* name) {
    zmq::socket_t socket(context, type);
    socket.set(zmq::sockopt::linger, 200);
    socket.connect(dir.endpoint(name));
    return socket;
  }
  RunDir dir;
  zmq::context_t context;
  std::unique_ptr<Broker> broker;
  std::unique_ptr<Server> server;
  std::unique_ptr<Publisher> publisher;
  std::unique_ptr<Subscriber> subscriber;
  std::unique_ptr<Requester> requester;
  std::atomic<bool> stop{false};
  std::thread thread;
};

std::string random_bytes(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST_CASE("bytes that are not ZMTP, on all three sockets") {
  World world;
  std::mt19937 random(1);
  std::vector<Fd> open;
  for (const char* name : {"publish.sock", "events.sock", "commands.sock"}) {
    for (const std::string& bytes :
         {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10),
          std::string(64, '\xff'), random_bytes(random, 4096),
          // a real greeting, and then a frame that claims 2^62 bytes
          std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL", 16) + std::string(48, '\0') +
              std::string("\6\x40\0\0\0\0\0\0\0", 9)}) {
      open.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, (world.dir.path / name).c_str(), sizeof address.sun_path - 1);
      REQUIRE(::connect(open.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
      (void)!::send(open.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  }
  world.alive();  // with all of them still connected
  open.clear();
  world.alive();
}

TEST_CASE("garbage, truncated, wrong-version and oversized events") {
  World world;
  auto raw = world.raw(zmq::socket_type::pub, "publish.sock");
  const auto say = [&](std::vector<std::string> frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      raw.send(zmq::buffer(frames[i]), i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  };
  Envelope envelope;
  envelope.source = "raw";
  envelope.seq = 1;
  const std::string good = encode(envelope, TaskState{});
  envelope.v = 2;
  const std::string newer = encode(envelope, TaskState{});
  envelope = {};
  const std::string nobody = encode(envelope, TaskState{});  // no source, no number
  // Messages of one connection arrive in order: once its marker is there, everything before it has been counted.
  envelope.source = "marker";
  const auto marker = [&] {
    ++envelope.seq;
    say({"worker.state/marker", encode(envelope, WorkerState{})});
    return eventually([&] {
      auto event = world.subscriber->receive(5ms);
      return event && event->envelope.source == "marker" && event->envelope.seq == envelope.seq;
    });
  };
  std::mt19937 random(2);
  const uint64_t before = world.subscriber->malformed();
  REQUIRE(eventually([&] {  // until the raw publisher's connection stands
    say({"task.state/x", "garbage"});
    (void)world.subscriber->receive(5ms);
    return world.subscriber->malformed() > before;
  }));
  REQUIRE(marker());
  const uint64_t counted = world.subscriber->malformed();
  for (int i = 0; i < 100; ++i) say({"task.state/x", random_bytes(random, random() % 300)});
  say({"task.state/x", good.substr(0, good.size() / 2)});
  say({"task.state/x", newer});
  say({"task.state/x", nobody});
  say({"task.state/x", good + "x"});
  // The broker itself drops what has not two frames or too long a topic.
  say({"only a topic"});
  say({"task.state/x", good, "and more"});
  say({std::string(5000, 't'), good});
  say(std::vector<std::string>(200, "frame"));
  world.alive();
  REQUIRE(marker());
  CHECK(world.subscriber->malformed() == counted + 104);

  // A late joiner comes while the kept state of this topic is garbage: it is not replayed, and hurts nobody.
  auto late = Subscriber::connect(world.context, world.dir.endpoint("events.sock"), {"task.state"});
  REQUIRE(late.ok());
  CHECK_FALSE((*late)->receive(100ms).has_value());
  CHECK((*late)->malformed() == 0);

  say({"task.state/x", std::string(1 << 20, 'x')});  // past the socket's limit: libzmq cuts the connection
  world.alive();
}

TEST_CASE("monitors may only subscribe") {
  World world;
  auto liar = world.raw(zmq::socket_type::xsub, "events.sock");
  const auto say = [&](const std::string& bytes) { liar.send(zmq::buffer(bytes), zmq::send_flags::none); };
  say(std::string("\1", 1));
  zmq::message_t frame;
  liar.set(zmq::sockopt::rcvtimeo, static_cast<int>(kWatchdogMs.count()));
  world.publisher->publish(TaskState{});
  REQUIRE(liar.recv(frame, zmq::recv_flags::none).has_value());  // connected
  say(std::string("\0", 1));                                     // takes back what others asked for, too
  say(std::string("\0bubble.", 8));
  say(std::string("\0task.state/", 12));
  say("bubble.end/gpt/0");  // a message that pretends to be an event
  say("\x02");
  for (int i = 0; i < 2000; ++i) say("\1" + std::to_string(i));
  world.alive();
  say("\1" + std::string(100'000, 's'));
  world.alive();
}

TEST_CASE("a monitor that subscribes without end is disconnected; the others hear on") {
  World world;
  auto liar = world.raw(zmq::socket_type::xsub, "events.sock");
  REQUIRE(::zmq_socket_monitor(liar.handle(), "inproc://liar", ZMQ_EVENT_DISCONNECTED) == 0);
  zmq::socket_t watch(world.context, zmq::socket_type::pair);
  watch.connect("inproc://liar");
  watch.set(zmq::sockopt::rcvtimeo, static_cast<int>(kWatchdogMs.count()));
  for (int i = 0; i < 200; ++i) {  // 100 kB: far more than anybody listens to, and less than one queue
    const std::string topic = "\1bubble.end/" + std::to_string(i);
    liar.send(zmq::buffer(topic + std::string(500 - topic.size(), 's')), zmq::send_flags::none);
  }
  zmq::message_t frame;
  REQUIRE(watch.recv(frame, zmq::recv_flags::none).has_value());
  ::zmq_socket_monitor(liar.handle(), nullptr, 0);
  world.alive();
}

TEST_CASE("what subscribers may hold is bounded for each and for all") {
  using Limit = detail::SubscriptionLimit;
  Limit limit;
  CHECK(limit.add(7, Limit::kMostOfOne).empty());
  CHECK(limit.add(8, 1).empty());
  CHECK(limit.add(7, 1) == std::vector<int>{7});
  CHECK(limit.add(7, 1).empty());  // it has connected again
  for (int fd = 100; fd < 100 + static_cast<int>(Limit::kMostOfAll / Limit::kMostOfOne) - 1; ++fd)
    CHECK(limit.add(fd, Limit::kMostOfOne).empty());
  CHECK(limit.add(9, Limit::kMostOfOne).size() == 1);
}

TEST_CASE("bad commands are answered with what is wrong, as far as anybody can be told") {
  World world;
  auto raw = world.raw(zmq::socket_type::dealer, "commands.sock");
  raw.set(zmq::sockopt::rcvtimeo, static_cast<int>(kWatchdogMs.count()));
  const auto ask = [&](const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      raw.send(zmq::buffer(frames[i]), i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  };
  const auto answer = [&] {
    zmq::message_t frame;
    REQUIRE(raw.recv(frame, zmq::recv_flags::none).has_value());
    auto message = detail::unpack_message(detail::view(frame), {});
    REQUIRE(message.ok());
    return *message;
  };
  Message request;
  request.id = "id";
  request.command = "status";
  std::string frame = detail::pack_message(request);

  std::string newer = frame;
  newer[newer.find("\xa1v") + 2] = 9;
  ask({newer});
  Message refused = answer();
  CHECK(refused.id == "id");
  REQUIRE(refused.error.has_value());
  CHECK(refused.error->code == Code::kVersion);

  std::string odd = frame;
  odd.replace(odd.find("\xa4"
                       "body") +
                  5,
              1, "\xc3");
  ask({odd});
  refused = answer();
  REQUIRE(refused.error.has_value());
  CHECK(refused.error->code == Code::kInvalidArgument);

  request.id = "many";
  ask({detail::pack_message(request), "attachment", "another"});
  refused = answer();
  CHECK(refused.id == "many");
  CHECK(refused.error.has_value());

  std::mt19937 random(3);
  ask({""});
  ask({"", frame});  // a REQ socket's empty frame first
  ask(std::vector<std::string>(100, ""));
  ask({frame.substr(0, frame.size() - 3)});
  ask({std::string(1 << 20, '\x91')});
  for (int i = 0; i < 200; ++i) ask({random_bytes(random, random() % 200)});
  for (size_t i = 0; i < frame.size(); ++i) {
    std::string mutated = frame;
    mutated[i] = static_cast<char>(random());
    ask({mutated});
  }
  world.alive();

  // A reply nobody waits for, to the server and to the requester's own id.
  Message reply;
  reply.is_reply = true;
  reply.id = "nobody";
  reply.command = "status";
  reply.body = "\x80";
  ask({detail::pack_message(reply)});
  world.alive();
}

TEST_CASE("a server that answers garbage, the wrong id or another version") {
  RunDir dir;
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  router.bind(dir.endpoint("c.sock"));
  router.set(zmq::sockopt::rcvtimeo, static_cast<int>(kWatchdogMs.count()));
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  int round = 0;
  std::thread manager([&] {
    for (; round < 2; ++round) {
      zmq::message_t peer, frame;
      if (!router.recv(peer, zmq::recv_flags::none) || !router.recv(frame, zmq::recv_flags::none)) return;
      auto request = detail::unpack_message(detail::view(frame), {});
      if (!request.ok()) return;  // Catch's checks are for one thread: the rounds are counted
      Message reply = *request;
      reply.is_reply = true;
      std::string good = detail::pack_message(reply);
      std::string newer = good;
      newer[newer.find("\xa1v") + 2] = 9;
      reply.id = "somebody else's";
      for (const std::string& bytes : {std::string(), std::string("garbage"), good.substr(0, 9),
                                       detail::pack_message(reply), round == 0 ? good : newer}) {
        router.send(zmq::buffer(peer.data(), peer.size()), zmq::send_flags::sndmore);
        router.send(zmq::buffer(bytes), zmq::send_flags::none);
      }
    }
  });
  CHECK((*requester)->request(GetStatus{}, kWatchdogMs).ok());
  auto refused = (*requester)->request(GetStatus{}, kWatchdogMs);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kVersion);
  manager.join();
  CHECK(round == 2);
}

constexpr uid_t kStranger = 65534;

sockaddr_un address_of(const std::filesystem::path& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

// Connects and waits for what libzmq says first: nothing, and the end, is a refusal. Who is let in stays in `open`.
bool let_in(const sockaddr_un& address, std::vector<Fd>& open) {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  char first = 0;
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::recv(fd.get(), &first, 1, 0) != 1) {
    return false;
  }
  open.push_back(std::move(fd));
  return true;
}

// Runs `body` as another user of the host; only root can. In a thread of its own, which alone changes its user: a
// forked child of a process with threads must not allocate, and `body` does.
int as_stranger(const std::function<int()>& body) {
  int answer = -1;
  std::thread other([&] {
    // glibc's wrappers would change the user of every thread.
    if (::syscall(SYS_setgroups, 0, nullptr) == 0 && ::syscall(SYS_setresgid, kStranger, kStranger, kStranger) == 0 &&
        ::syscall(SYS_setresuid, kStranger, kStranger, kStranger) == 0) {
      answer = body();
    }
  });
  other.join();
  return answer;
}

TEST_CASE("a thousand connections do not end a process with few descriptors; who was there hears on") {
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  World world;
  int lowest_free = ::dup(0);
  REQUIRE(lowest_free >= 0);
  ::close(lowest_free);
  const auto address = address_of(world.dir.path / "events.sock");
  const rlimit few = {static_cast<rlim_t>(lowest_free) + Gate::kReserve + 50, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  bool apart = false;
  size_t in = 0;
  size_t late = 0;
  std::barrier turn(2);
  // The other end has descriptors of its own, as a process would, and none of this one's.
  std::thread other([&] {
    apart = ::unshare(CLONE_FILES) == 0 && ::close_range(3, ~0U, 0) == 0;
    std::vector<Fd> open;
    for (int i = 0; i < 1000 && apart; ++i) in += let_in(address, open) ? 1 : 0;
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    for (int i = 0; i < 10 && apart; ++i) late += let_in(address, open) ? 1 : 0;
    turn.arrive_and_wait();
    turn.arrive_and_wait();
  });
  turn.arrive_and_wait();
  world.alive();
  // All of them gone: what comes now is refused, too, and nothing spins or ends.
  std::vector<int> rest;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) rest.push_back(fd);
  turn.arrive_and_wait();
  turn.arrive_and_wait();
  for (const int fd : rest) ::close(fd);
  world.alive();
  turn.arrive_and_wait();
  other.join();
  CHECK(apart);
  CHECK(in > 10);
  CHECK(in <= 50);
  CHECK_FALSE(rest.empty());
  CHECK(late == 0);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  std::vector<Fd> open;
  CHECK(eventually([&] { return let_in(address, open); }));  // there is room again
  world.alive();
}

TEST_CASE("one user's connections are bounded, and another's are not touched by it") {
  if (::geteuid() != 0) return;  // only root can be others
  World world(kStranger);
  REQUIRE(::chmod(world.dir.path.c_str(), 0755) == 0);
  const auto address = address_of(world.dir.path / "events.sock");
  const int in = as_stranger([&] {
    std::vector<Fd> open;
    int count = 0;
    for (int i = 0; i < 200; ++i) count += let_in(address, open) ? 1 : 0;
    return count;
  });
  CHECK(in == static_cast<int>(Gate::kMostOfOne));
  world.alive();
  std::vector<Fd> open;
  CHECK(let_in(address, open));
}

TEST_CASE("a subscriber that does not read is disconnected; the others hear on") {
  World world;
  auto stopped = world.raw(zmq::socket_type::sub, "events.sock");
  REQUIRE(::zmq_socket_monitor(stopped.handle(), "inproc://stopped", ZMQ_EVENT_DISCONNECTED) == 0);
  zmq::socket_t watch(world.context, zmq::socket_type::pair);
  watch.connect("inproc://stopped");
  stopped.set(zmq::sockopt::subscribe, "bubble.begin");
  BubbleBegin event;
  event.device = std::string(16 << 10, 'd');
  zmq::message_t frame;
  bool dropped = false;
  CHECK(eventually([&] {
    for (int i = 0; i < 20; ++i) world.publisher->publish(event);
    while (world.subscriber->receive(0ms)) {
    }
    // libzmq does not look at a connection whose queue is full: it is told of the end once that is read, and what has
    // come behind it, which may fill it again.
    dropped = Gate::instance().drop_unread(world.dir.endpoint("events.sock")) > 0 || dropped;
    if (dropped) {
      while (stopped.recv(frame, zmq::recv_flags::dontwait)) {
      }
      zmq::pollitem_t item{watch.handle(), 0, ZMQ_POLLIN, 0};
      zmq::poll(&item, 1, 200ms);
    }
    return watch.recv(frame, zmq::recv_flags::dontwait).has_value();
  }));
  ::zmq_socket_monitor(stopped.handle(), nullptr, 0);
  world.alive();
}

TEST_CASE("a subscriber that reads in batches stays, though its socket is full before each") {
  World world;
  auto in_batches = world.raw(zmq::socket_type::sub, "events.sock");
  in_batches.set(zmq::sockopt::rcvhwm, 16);
  in_batches.set(zmq::sockopt::rcvtimeo, 50);  // what waits elsewhere comes a few at a time
  REQUIRE(::zmq_socket_monitor(in_batches.handle(), "inproc://batches", ZMQ_EVENT_DISCONNECTED) == 0);
  zmq::socket_t watch(world.context, zmq::socket_type::pair);
  watch.connect("inproc://batches");
  in_batches.set(zmq::sockopt::subscribe, "bubble.begin");
  BubbleBegin event;
  event.device = std::string(4 << 10, 'd');
  zmq::message_t frame;
  size_t read = 0;
  // For longer than one may be full at all looks.
  const int64_t end_ns = SteadyClock::now() + 8 * kNsPerSec;
  for (int64_t now = SteadyClock::now(), next_ns = now; now < end_ns; now = SteadyClock::now()) {
    for (int i = 0; i < 2; ++i) world.publisher->publish(event);
    while (world.subscriber->receive(0ms)) {
    }
    if (now >= next_ns) {
      next_ns = now + 700 * kNsPerMs;
      while (in_batches.recv(frame)) ++read;
    }
    std::this_thread::sleep_for(4ms);
  }
  CHECK(read > 500);
  CHECK_FALSE(watch.recv(frame, zmq::recv_flags::dontwait).has_value());
  ::zmq_socket_monitor(in_batches.handle(), nullptr, 0);
  world.alive();
}

TEST_CASE("events and commands are for the owner and the group, publishing for the owner") {
  if (::geteuid() != 0) return;
  World world(1234);
  struct stat info = {};
  for (const char* name : {"events.sock", "commands.sock"}) {
    REQUIRE(::stat((world.dir.path / name).c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0660);
    CHECK(info.st_gid == 1234);
  }
  REQUIRE(::stat((world.dir.path / "publish.sock").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("the server is told by the kernel who asks") {
  RunDir dir;
  zmq::context_t context;
  auto server = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(server.ok());
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  (*requester)->send(GetStatus{});
  std::optional<Server::Incoming> incoming;
  REQUIRE(eventually([&] {
    (void)(*requester)->receive(1ms);
    incoming = (*server)->receive(5ms);
    return incoming.has_value();
  }));
  CHECK(incoming->sender.process.uid == ::geteuid());
  CHECK(incoming->sender.process.pid == ::getpid());
}

TEST_CASE("a manager in a folder that somebody else has made hears nothing and is not believed") {
  if (::geteuid() != 0) return;
  RunDir dir;
  zmq::context_t context;
  auto server = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(server.ok());
  REQUIRE(::chown(dir.path.c_str(), kStranger, kStranger) == 0);
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  auto refused = (*requester)->request(GetStatus{}, kWatchdogMs);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kPermission);
  CHECK(refused.error().message.find(user_name(kStranger)) != std::string::npos);
  CHECK_FALSE((*server)->receive(0ms).has_value());
  // As a worker is: it says what it has to say whenever somebody is there.
  (*requester)->send(GetStatus{});
  (void)(*requester)->receive(300ms);
  CHECK_FALSE((*server)->receive(0ms).has_value());
  REQUIRE(::chown(dir.path.c_str(), 0, 0) == 0);
  CHECK(eventually([&] {
    (*requester)->send(GetStatus{});
    (void)(*requester)->receive(5ms);
    return (*server)->receive(5ms).has_value();
  }));
}

TEST_CASE("a false manager that listens at a socket of a good folder gets not one byte") {
  if (::geteuid() != 0) return;
  RunDir dir;
  const auto address = address_of(dir.path / "c.sock");
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::seteuid(kStranger) == 0);  // listen() notes who calls it
  REQUIRE(::listen(listener.get(), 16) == 0);
  REQUIRE(::seteuid(0) == 0);
  zmq::context_t context;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  (*requester)->send(GetStatus{});
  (void)(*requester)->receive(0ms);
  const Fd taken(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(taken.valid());
  char byte = 0;
  CHECK(::recv(taken.get(), &byte, 1, 0) <= 0);
  auto refused = (*requester)->request(GetStatus{}, kWatchdogMs);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message.find("listens at") != std::string::npos);
}

}  // namespace
}  // namespace freeride::bus
