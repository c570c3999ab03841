// The bus over TCP: who gets in, who does not, and what both are told.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <thread>

#include "freeride/base/fd.hpp"
#include "freeride/bus/sockets.hpp"
#include "gate.hpp"
#include "message.hpp"
#include "tcp.hpp"
#include "test_util.hpp"
#include "wait_fd.hpp"

namespace freeride::bus {
namespace {
using test::eventually;
using test::kWatchdogMs;
using test::RunDir;
using namespace std::chrono_literals;

sockaddr_in at_port(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

bool is_free(uint16_t port) {
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = at_port(port);
  return ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// A port that is free, and the next one too.
uint16_t free_ports() {
  for (;;) {
    const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = at_port(0);
    socklen_t size = sizeof address;
    REQUIRE(::bind(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    const uint16_t port = ntohs(address.sin_port);
    if (port < 65535 && is_free(port + 1)) return port;
  }
}

Fd dial(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = at_port(port);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Everything that comes until the other side has said nothing for `quiet_ms`, or has closed.
std::string heard(int fd, int quiet_ms, bool* closed = nullptr) {
  std::string all;
  for (;;) {
    pollfd look{fd, POLLIN, 0};
    if (::poll(&look, 1, quiet_ms) <= 0) return all;
    char bytes[4096];
    const ssize_t n = ::recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0) {
      if (closed != nullptr) *closed = true;
      return all;
    }
    all.append(bytes, static_cast<size_t>(n));
  }
}

struct World {
  World() {
    manager = make_key_pair().value();
    auto started = Doorkeeper::start(context, manager.secret_key, [this](const std::string& key) {
      const std::lock_guard lock(mutex);
      return admitted.count(key) != 0;
    });
    REQUIRE(started.ok());
    door = std::move(*started);
    auto bound = Server::bind(context, dir.endpoint("commands.sock"));
    REQUIRE(bound.ok());
    server = std::move(*bound);
    const TcpPort commands_port{commands, door.get()}, events_port{events, door.get()};
    REQUIRE(server->listen(context, commands_port).ok());
    auto broke =
        Broker::start(context, dir.endpoint("publish.sock"), dir.endpoint("events.sock"), std::nullopt, &events_port);
    REQUIRE(broke.ok());
    broker = std::move(*broke);
    publisher = Publisher::connect(context, dir.endpoint("publish.sock"), "honest").value();
    thread = std::thread([this] {
      while (!stop) {
        auto incoming = server->receive(10ms);
        if (!incoming) continue;
        const std::lock_guard lock(mutex);
        seen = incoming->sender;
        attachment = std::move(incoming->message.attachment);
        server->reply(*incoming, LogReply{incoming->sender.key});
      }
    });
  }
  ~World() {
    stop = true;
    thread.join();
  }
  ClientKey client(bool authorised = true) {
    const KeyPair pair = make_key_pair().value();
    const std::lock_guard lock(mutex);
    if (authorised) admitted.insert(pair.public_key);
    return {pair.public_key, pair.secret_key, manager.public_key, "my.key"};
  }
  void revoke(const ClientKey& key) {
    {
      const std::lock_guard lock(mutex);
      admitted.erase(key.public_key);
    }
    broker->look_at_keys();
  }
  // Commands are answered over the host's socket, and over TCP to who has a key.
  void alive() {
    auto local = Requester::connect(context, dir.endpoint("commands.sock")).value();
    CHECK(local->request(GetStatus{}, kWatchdogMs).ok());
  }
  bool hears(Subscriber& subscriber) {
    return eventually([&] {
      publisher->publish(BubbleBegin{});
      return subscriber.receive(5ms).has_value();
    });
  }

  RunDir dir;
  zmq::context_t context;
  KeyPair manager;
  std::mutex mutex;
  std::set<std::string> admitted;
  const uint16_t port = free_ports();
  const std::string commands = "tcp://127.0.0.1:" + std::to_string(port);
  const std::string events = events_port_of(commands).value();
  std::unique_ptr<Doorkeeper> door;  // before what listens
  std::unique_ptr<Server> server;
  std::unique_ptr<Broker> broker;
  std::unique_ptr<Publisher> publisher;
  Sender seen;
  std::string attachment;
  std::atomic<bool> stop{false};
  std::thread thread;
};

std::string greeting(char minor, const char* mechanism, bool as_server) {
  std::string bytes("\xff\0\0\0\0\0\0\0\1\x7f\3", 11);
  bytes += minor;
  bytes += mechanism;
  bytes.resize(32, '\0');
  bytes += static_cast<char>(as_server);
  bytes.resize(64, '\0');
  return bytes;
}

TEST_CASE("with an authorised key: commands, large attachments and events; the key is known with each message") {
  World world;
  const ClientKey key = world.client();
  auto requester = Requester::connect(world.context, world.commands, &key).value();
  std::string large(9'000'001, 'x');
  large[5'000'000] = 'y';
  auto reply = requester->request(GetStatus{}, kWatchdogMs, large);
  REQUIRE(reply.ok());
  CHECK(reply->as<LogReply>()->text == key.public_key);
  {
    const std::lock_guard lock(world.mutex);
    CHECK(world.attachment == large);
    CHECK(world.seen.remote);
    CHECK(world.seen.address == "127.0.0.1");
    CHECK(world.seen.process.uid == static_cast<uid_t>(-1));
  }
  auto subscriber = Subscriber::connect(world.context, world.events, {""}, &key).value();
  REQUIRE(subscriber->await(kWatchdogMs).ok());
  CHECK(world.hears(*subscriber));
  world.alive();
  const std::lock_guard lock(world.mutex);
  CHECK_FALSE(world.seen.remote);
  CHECK(world.seen.key.empty());
}

TEST_CASE("who is not let in is told why, and does not wait for it") {
  World world;
  const auto refusal = [&](const std::string& commands, const std::string& events, const ClientKey* key) {
    auto requester = Requester::connect(world.context, commands, key).value();
    const auto reply = requester->request(GetStatus{}, kWatchdogMs);
    REQUIRE_FALSE(reply.ok());
    CHECK(reply.error().code != Code::kTimeout);
    CHECK_FALSE(requester->request(GetStatus{}, kWatchdogMs).ok());
    auto subscriber = Subscriber::connect(world.context, events, {""}, key).value();
    const auto there = subscriber->await(kWatchdogMs);
    REQUIRE_FALSE(there.ok());
    CHECK(there.error().code == reply.error().code);
    return reply.error().message;
  };
  const ClientKey stranger = world.client(false);
  CHECK(refusal(world.commands, world.events, &stranger) ==
        "the manager at " + world.commands + " refused this key (my.key)");
  CHECK(refusal(world.commands, world.events, nullptr).find(" wants a key") != std::string::npos);
  ClientKey of_another = world.client();
  of_another.manager_key = make_key_pair()->public_key;
  CHECK(refusal(world.commands, world.events, &of_another) ==
        "the manager at " + world.commands + " is not the one that my.key is for");

  // Without keys, on the loopback interface.
  zmq::context_t context;
  RunDir dir;
  const std::string open = "tcp://127.0.0.1:" + std::to_string(free_ports());
  auto server = Server::bind(context, dir.endpoint("commands.sock")).value();
  REQUIRE(server->listen(context, {open, nullptr}).ok());
  const ClientKey key = world.client();
  auto requester = Requester::connect(context, open, &key).value();
  const auto reply = requester->request(GetStatus{}, kWatchdogMs);
  REQUIRE_FALSE(reply.ok());
  CHECK(reply.error().code == Code::kPermission);  // whoever of both sees it first
  CHECK(reply.error().message.find("my.key") != std::string::npos);
  world.alive();
}

TEST_CASE("who never speaks ZMTP is no manager, and a host that is not known is told at once") {
  zmq::context_t context;
  const uint16_t port = free_ports();
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = at_port(port);
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(listener.get(), 8) == 0);
  std::thread web([&] {
    for (int i = 0; i < 2; ++i) {
      const Fd one(::accept(listener.get(), nullptr, nullptr));
      (void)!::send(one.get(), "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
    }
  });
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(port);
  auto requester = Requester::connect(context, endpoint).value();
  const auto reply = requester->request(GetStatus{}, kWatchdogMs);
  REQUIRE_FALSE(reply.ok());
  CHECK(reply.error().code == Code::kPermission);
  CHECK(reply.error().message == "what listens at " + endpoint + " wants a key, or is no manager");
  web.join();

  const auto unknown = Requester::connect(context, "tcp://no-such-host.invalid:7420");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().message.find("no-such-host.invalid") != std::string::npos);
  for (const char* bad : {"tcp://", "tcp://host", "tcp://host:", "tcp://:1", "tcp://host:0", "tcp://host:65536",
                          "tcp://host:1x", "tcp://::1:7420", "tcp://a b:1", "tcp://[]:1"}) {
    INFO(bad);
    CHECK_FALSE(Requester::connect(context, bad).ok());
    CHECK_FALSE(events_port_of(bad).ok());
  }
  CHECK(events_port_of("tcp://[::1]:7420").value() == "tcp://[::1]:7421");
  CHECK_FALSE(events_port_of("tcp://host:65535").ok());
  auto nobody = Requester::connect(context, "tcp://127.0.0.1:" + std::to_string(free_ports())).value();
  const auto none = nobody->request(GetStatus{}, 200ms);
  CHECK(none.error().code == Code::kTimeout);
  CHECK(none.error().message.find("Connection refused") != std::string::npos);
}

TEST_CASE("a key that is revoked while it is connected: the next command is refused, and events end") {
  World world;
  const ClientKey key = world.client(), other = world.client();
  auto requester = Requester::connect(world.context, world.commands, &key).value();
  REQUIRE(requester->request(GetStatus{}, kWatchdogMs).ok());
  auto subscriber = Subscriber::connect(world.context, world.events, {""}, &key).value();
  auto silent = Subscriber::connect(world.context, world.events, {}, &key).value();  // connected, not subscribed yet
  auto stays = Subscriber::connect(world.context, world.events, {""}, &other).value();
  REQUIRE(silent->await(kWatchdogMs).ok());
  REQUIRE(world.hears(*subscriber));
  REQUIRE(world.hears(*stays));

  world.revoke(key);
  const auto refused = requester->request(GetStatus{}, kWatchdogMs);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kPermission);
  CHECK(eventually([&] { return !subscriber->reachable().ok(); }));
  CHECK(eventually([&] { return !silent->reachable().ok(); }));
  while (subscriber->receive(0ms)) {  // what was under way
  }
  for (int i = 0; i < 20; ++i) world.publisher->publish(BubbleBegin{});
  REQUIRE(world.hears(*stays));
  CHECK_FALSE(subscriber->receive(50ms).has_value());
  CHECK(stays->reachable().ok());
  auto again = Requester::connect(world.context, world.commands, &key).value();
  CHECK(again->request(GetStatus{}, kWatchdogMs).error().code == Code::kPermission);
}

TEST_CASE("a revoked key is not given the answer to its own earlier request either, and ids of two keys are apart") {
  World world;
  const ClientKey one = world.client(), two = world.client();
  Message request;
  request.id = "the same";
  request.command = GetStatus::kCommand;
  request.body = encode(GetStatus{});
  const auto ask = [&](zmq::socket_t& socket) {
    socket.send(zmq::buffer(detail::pack_message(request)), zmq::send_flags::none);
    zmq::message_t reply;
    REQUIRE(socket.recv(reply));
    return detail::unpack_message(detail::view(reply), {}).value();
  };
  const auto connect = [&](const ClientKey& key) {
    zmq::socket_t socket(world.context, zmq::socket_type::dealer);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::rcvtimeo, 60'000);
    detail::set_client_key(socket, &key);
    socket.connect(world.commands);
    return socket;
  };
  auto first = connect(one), second = connect(two);
  CHECK(ask(first).as<LogReply>()->text == one.public_key);
  CHECK(ask(second).as<LogReply>()->text == two.public_key);
  CHECK(ask(first).as<LogReply>()->text == one.public_key);
  world.revoke(one);
  const Message refused = ask(first);
  REQUIRE(refused.error.has_value());
  CHECK(refused.error->code == Code::kPermission);
}

TEST_CASE("when the check of keys is gone nobody gets in, though libzmq itself would let everybody") {
  zmq::context_t context;
  const KeyPair manager = make_key_pair().value(), pair = make_key_pair().value();
  const ClientKey key{pair.public_key, pair.secret_key, manager.public_key, "my.key"};
  const auto gets_in = [&](const std::string& endpoint, zmq::socket_t& router) {
    zmq::socket_t dealer(context, zmq::socket_type::dealer);
    dealer.set(zmq::sockopt::linger, 0);
    detail::set_client_key(dealer, &key);
    detail::HandshakeWatch watch(context, dealer, endpoint, &key);
    dealer.connect(endpoint);
    dealer.send(zmq::str_buffer("hello"), zmq::send_flags::none);
    bool in = false;
    CHECK(eventually([&] {
      detail::wait_readable(watch.socket(), 10);
      const bool refused = !watch.look().ok();
      in = in || watch.connected();
      return refused || in;
    }));
    zmq::message_t frame;
    router.set(zmq::sockopt::rcvtimeo, in ? 60'000 : 200);
    CHECK(router.recv(frame).has_value() == in);
    if (in) CHECK(router.recv(frame).has_value());  // after the name of its sender, what it said
    return in;
  };
  auto door = Doorkeeper::start(context, manager.secret_key, [](const std::string&) { return true; }).value();
  CHECK(Doorkeeper::start(context, manager.secret_key, {}).error().code == Code::kAlreadyExists);
  detail::TcpListener listener;
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_ports());
  REQUIRE(listener.open(context, router, {endpoint, door.get()}, 1 << 20).ok());
  CHECK(gets_in(endpoint, router));
  door.reset();
  CHECK_FALSE(gets_in(endpoint, router));

  // What this is for: the same keys, and a libzmq that was not told to refuse.
  zmq::socket_t trusting(context, zmq::socket_type::router);
  trusting.set(zmq::sockopt::linger, 0);
  trusting.set(zmq::sockopt::curve_server, true);
  trusting.set(zmq::sockopt::curve_secretkey, manager.secret_key);
  const std::string other = "tcp://127.0.0.1:" + std::to_string(free_ports());
  trusting.bind(other);
  CHECK(gets_in(other, trusting));
}

TEST_CASE("what a TCP connection has been given is not sent over it again") {
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(free_ports());
  router.bind(endpoint);
  auto client = Requester::connect(context, endpoint).value();
  const auto answer = client->request(GetStatus{}, 2500ms, std::string(100'000, 'x'));
  CHECK(answer.error().code == Code::kTimeout);
  CHECK(client->may_be_done());
  int given = 0;
  for (detail::Frames frames; detail::wait_readable(router, 100), frames.clear(), true;) {
    bool too_many = false;
    if (!detail::receive_frames(router, frames, too_many)) break;
    ++given;
  }
  CHECK(given == 1);
}

TEST_CASE("the end of the check of keys is the end of the process") {
  const KeyPair manager = make_key_pair().value(), pair = make_key_pair().value();
  const uint16_t port = free_ports();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(2);
    ::alarm(60);
    zmq::context_t context;
    auto door = Doorkeeper::start(context, manager.secret_key,
                                  [](const std::string&) -> bool { throw std::runtime_error("broken"); });
    zmq::socket_t router(context, zmq::socket_type::router), dealer(context, zmq::socket_type::dealer);
    detail::TcpListener listener;
    const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(port);
    if (!door || !listener.open(context, router, {endpoint, door->get()}, 1 << 20)) ::_exit(2);
    const ClientKey key{pair.public_key, pair.secret_key, manager.public_key, "my.key"};
    detail::set_client_key(dealer, &key);
    dealer.connect(endpoint);
    for (;;) ::pause();
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 1);
}

TEST_CASE("strangers are told ZeroMQ's greeting and nothing else, whatever they say") {
  World world;
  const std::string null_ready("\4\x19\5READY\x0bSocket-Type\0\0\0\6DEALER", 27);
  std::vector<Fd> open;
  for (const uint16_t port : {world.port, static_cast<uint16_t>(world.port + 1)}) {
    for (const std::string& bytes :
         {std::string(), std::string("GET / HTTP/1.0\r\n\r\n"), std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10),
          std::string("\1\0", 2),                               // ZMTP 1.0
          std::string("\xff\0\0\0\0\0\0\0\1\x7f\1\5\0\0", 14),  // ZMTP 2.0, which knows no keys
          greeting(0, "NULL", false) + null_ready, greeting(1, "PLAIN", false), greeting(1, "CURVE", true),
          greeting(1, "CURVE", false) + std::string(4096, '\xff'),  // not a handshake
          greeting(1, "CURVE", false) + std::string("\4\xc8\5HELLO", 8) + std::string(194, '\0'),
          greeting(1, "CURVE", false) + std::string("\6\x40\0\0\0\0\0\0\0", 9)}) {  // a frame of 2^62 bytes
      open.push_back(dial(port));
      (void)!::send(open.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      const std::string answer = heard(open.back().get(), 50);
      CHECK(answer.size() <= 64);
      for (const char* telling : {"reeride", "reeRide", "ROUTER", "XPUB", FREERIDE_TEST_VERSION})
        CHECK(answer.find(telling) == std::string::npos);
    }
  }
  world.alive();  // with all of them still connected
  const ClientKey key = world.client();
  CHECK(Requester::connect(world.context, world.commands, &key).value()->request(GetStatus{}, kWatchdogMs).ok());
  open.clear();
  world.alive();
}

TEST_CASE("a connection that never ends its handshake is closed") {
  World world;
  const Fd quiet = dial(world.port), half = dial(world.port + 1);
  const std::string begin = greeting(1, "CURVE", false);
  (void)!::send(half.get(), begin.data(), 20, MSG_NOSIGNAL);
  for (const Fd* one : {&quiet, &half}) {
    bool closed = false;
    (void)heard(one->get(), 60'000, &closed);
    CHECK(closed);
  }
}

TEST_CASE("a flood of connections from one address: the rest is closed at once, and this host is served") {
  World world;
  std::vector<Fd> open;
  for (size_t i = 0; i < 3 * detail::Gate::kMostOfAddress; ++i) open.push_back(dial(world.port));
  size_t closed = 0;
  CHECK(eventually([&] {
    closed = 0;
    for (const Fd& one : open) {
      pollfd look{one.get(), POLLIN | POLLRDHUP, 0};
      closed += ::poll(&look, 1, 0) == 1 && (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 ? 1 : 0;
    }
    return closed >= 2 * detail::Gate::kMostOfAddress;
  }));
  CHECK(closed == 2 * detail::Gate::kMostOfAddress);
  world.alive();
  open.clear();
  const ClientKey key = world.client();
  CHECK(Requester::connect(world.context, world.commands, &key).value()->request(GetStatus{}, kWatchdogMs).ok());
}

TEST_CASE("a port that cannot be opened leaves no descriptor's number at its socket") {
  zmq::context_t idle(0);  // without a thread nothing can be bound
  zmq::socket_t stuck(idle, zmq::socket_type::router);
  detail::TcpListener listener;
  CHECK_FALSE(listener.open(idle, stuck, {"tcp://127.0.0.1:" + std::to_string(free_ports()), nullptr}, 1024).ok());
  int fd = 0;
  size_t size = sizeof fd;
  REQUIRE(zmq_getsockopt(stuck.handle(), ZMQ_USE_FD, &fd, &size) == 0);
  CHECK(fd == -1);
}

TEST_CASE("without keys only the loopback interface is opened, and a port that is taken is told") {
  zmq::context_t context;
  RunDir dir;
  auto server = Server::bind(context, dir.endpoint("commands.sock")).value();
  for (const char* open : {"tcp://0.0.0.0:7420", "tcp://*:7420", "tcp://[::]:7420"}) {
    const auto refused = server->listen(context, {open, nullptr});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().message == std::string(open) + " is not opened: without keys it would be everybody's");
  }
  const std::string inside = "tcp://127.0.0.1:" + std::to_string(free_ports());
  REQUIRE(server->listen(context, {inside, nullptr}).ok());
  auto second = Server::bind(context, dir.endpoint("other.sock")).value();
  CHECK(second->listen(context, {inside, nullptr}).error().code == Code::kAlreadyExists);
  auto requester = Requester::connect(context, inside).value();
  (void)requester->send(GetStatus{});
  std::optional<Server::Incoming> incoming;
  CHECK(eventually([&] {
    (void)requester->receive(1ms);
    return (incoming = server->receive(1ms)).has_value();
  }));
  CHECK(incoming->sender.remote);
  CHECK(incoming->sender.key.empty());
}

}  // namespace
}  // namespace freeride::bus
