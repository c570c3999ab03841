#include "freeride/bus/sockets.hpp"

#include <poll.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "endpoint.hpp"
#include "test_util.hpp"

namespace freeride::bus {
namespace {
using test::kWatchdogMs;
using test::RunDir;
using namespace std::chrono_literals;

bool readable(int fd, int timeout_ms) {
  pollfd item = {fd, POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) == 1;
}

// A server in a thread that answers every request with LogReply{command}.
class EchoServer {
 public:
  EchoServer(zmq::context_t& context, const std::string& endpoint) {
    auto bound = Server::bind(context, endpoint);
    REQUIRE(bound.ok());
    server_ = std::move(*bound);
    thread_ = std::thread([this] {
      while (!stop_) {
        if (auto incoming = server_->receive(20ms)) {
          ++executed;
          if (mute) continue;
          if (incoming->message.command == GetLog::kCommand) {
            server_->reply_error(*incoming, {Code::kNotFound, "no task x", "see freeride-ctl tasks"});
          } else {
            LogReply reply;
            reply.text = incoming->message.command + " " + incoming->message.attachment;
            server_->reply(*incoming, reply, incoming->message.attachment);
          }
        }
      }
    });
  }
  ~EchoServer() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<int> executed{0};
  std::atomic<bool> mute{false};

 private:
  std::unique_ptr<Server> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_CASE("a request gets its reply, its error and its attachment") {
  RunDir dir;
  zmq::context_t context;
  EchoServer server(context, dir.endpoint("c.sock"));
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  auto reply = (*requester)->request(GetStatus{}, kWatchdogMs);
  REQUIRE(reply.ok());
  CHECK(reply->as<LogReply>()->text == "status ");
  const std::string plugin(3 << 20, 'p');
  reply = (*requester)->request(FetchPlugin{}, kWatchdogMs, plugin);
  REQUIRE(reply.ok());
  CHECK(reply->attachment == plugin);
  reply = (*requester)->request(GetLog{}, kWatchdogMs);
  REQUIRE_FALSE(reply.ok());
  CHECK(reply.error().code == Code::kNotFound);
  CHECK(reply.error().text() == "no task x; see freeride-ctl tasks");
}

TEST_CASE("nobody there: the error names the endpoint and what to start") {
  RunDir dir;
  zmq::context_t context;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  auto reply = (*requester)->request(GetStatus{}, 50ms);
  REQUIRE_FALSE(reply.ok());
  CHECK(reply.error().code == Code::kTimeout);
  CHECK(reply.error().text().find("c.sock") != std::string::npos);
  CHECK(reply.error().text().find("freeride-manager") != std::string::npos);
}

TEST_CASE("a request that timed out is not executed by a manager that comes later") {
  RunDir dir;
  zmq::context_t context;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  CHECK_FALSE((*requester)->request(GetStatus{}, 50ms).ok());
  EchoServer server(context, dir.endpoint("c.sock"));
  REQUIRE((*requester)->request(ListTasks{}, kWatchdogMs).ok());
  CHECK(server.executed == 1);
}

TEST_CASE("the server may start after the requester and come back") {
  RunDir dir;
  zmq::context_t context;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  for (int round = 0; round < 3; ++round) {
    EchoServer server(context, dir.endpoint("c.sock"));
    CHECK((*requester)->request(GetStatus{}, kWatchdogMs).ok());
  }
}

TEST_CASE("a server whose socket was removed makes it again, and its connections go on") {
  RunDir dir;
  zmq::context_t context;
  auto server = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(server.ok());
  const auto answered = [&](Requester& requester) {
    requester.send(GetStatus{});
    return test::eventually([&] {
      (void)requester.receive(1ms);
      return (*server)->receive(1ms).has_value();
    });
  };
  auto before = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(before.ok());
  REQUIRE(answered(**before));
  for (int round = 0; round < 3; ++round) {
    REQUIRE(std::filesystem::remove(dir.path / "c.sock"));
    (*server)->keep_listening();
    CHECK((std::filesystem::status(dir.path / "c.sock").permissions() & std::filesystem::perms::all) ==
          (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
    auto after = Requester::connect(context, dir.endpoint("c.sock"));
    REQUIRE(after.ok());
    CHECK(answered(**after));
    CHECK(answered(**before));
  }
  CHECK_FALSE(Server::bind(context, dir.endpoint("c.sock")).ok());  // it still has its lock
}

TEST_CASE("a socket that cannot be bound leaves no name behind it, and can be bound another time") {
  const RunDir dir;
  const std::string endpoint = dir.endpoint("cmd");
  zmq::context_t context(1), idle(0);  // without a thread nothing can be bound
  zmq::socket_t socket(context, zmq::socket_type::router), stuck(idle, zmq::socket_type::router);
  auto lock = bind_endpoint(socket, endpoint, std::nullopt);
  REQUIRE(lock.ok());
  REQUIRE(std::filesystem::remove(dir.path / "cmd"));
  lock->keep_named(stuck);
  CHECK_FALSE(std::filesystem::exists(dir.path / "cmd"));
  int fd = 0;
  size_t size = sizeof fd;
  REQUIRE(zmq_getsockopt(stuck.handle(), ZMQ_USE_FD, &fd, &size) == 0);
  CHECK(fd == -1);
  lock->keep_named(socket);
  CHECK(std::filesystem::exists(dir.path / "cmd"));
}

TEST_CASE("a server whose run folder was removed makes it again, and is the only one there") {
  RunDir dir;
  zmq::context_t context;
  const auto folder = dir.path / "run";
  const std::string endpoint = dir.endpoint("run/c.sock");
  auto server = Server::bind(context, endpoint);
  REQUIRE(server.ok());
  std::filesystem::remove_all(folder);
  (*server)->keep_listening();
  auto requester = Requester::connect(context, endpoint);
  REQUIRE(requester.ok());
  (*requester)->send(GetStatus{});
  CHECK(test::eventually([&] {
    (void)(*requester)->receive(1ms);
    return (*server)->receive(1ms).has_value();
  }));
  CHECK(Server::bind(context, endpoint).error().text().find("is served by process") != std::string::npos);
}

TEST_CASE("that a run folder cannot be made again is said once, and tried until it can") {
  RunDir dir;
  zmq::context_t context;
  const auto folder = dir.path / "run";
  auto server = Server::bind(context, dir.endpoint("run/c.sock"));
  REQUIRE(server.ok());
  std::filesystem::remove_all(folder);
  std::ofstream(folder) << "in its way";
  std::ostringstream said;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_st>(said)));
  for (int look = 0; look < 3; ++look) (*server)->keep_listening();
  spdlog::set_default_logger(before);
  const std::string lines = said.str();
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 1);
  CHECK(lines.find(folder.string() + " is no directory") != std::string::npos);
  std::filesystem::remove(folder);
  (*server)->keep_listening();
  CHECK(std::filesystem::exists(folder / "c.sock"));
}

#ifndef FREERIDE_SANITIZED  // whose allocators end the process where memory does
TEST_CASE("an answer whose attachment finds no memory is an error, and the server goes on") {
  RunDir dir;
  zmq::context_t context;
  auto server = Server::bind(context, dir.endpoint("c.sock")).value();
  auto requester = Requester::connect(context, dir.endpoint("c.sock")).value();
  requester->send(FetchPlugin{});
  std::optional<Server::Incoming> asked;
  const auto is_asked = [&] {
    (void)requester->receive(0ms);  // sends it, once there is a connection
    return (asked = server->receive(0ms)).has_value();
  };
  REQUIRE(test::eventually(is_asked));
  std::string plugin(128u << 20, 'p');
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit little = {pages * static_cast<size_t>(::getpagesize()) + (32u << 20), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_AS, &little) == 0);
  server->reply(*asked, Ack{}, std::move(plugin));
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  const auto answer = requester->receive(kWatchdogMs);
  REQUIRE(answer.has_value());
  REQUIRE(answer->error.has_value());
  CHECK(answer->error->code == Code::kExhausted);
  requester->send(GetStatus{});
  CHECK(server->receive(kWatchdogMs).has_value());
}
#endif

TEST_CASE("a repeated request is answered again and executed once") {
  RunDir dir;
  zmq::context_t context;
  auto bound = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(bound.ok());
  Server& server = **bound;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  bool answered = false;  // Catch's checks are for one thread
  std::thread asking([&] {
    answered = (*requester)->request(GetStatus{}, kWatchdogMs).ok();  // repeats after each second of silence
  });
  auto first = server.receive(kWatchdogMs);
  REQUIRE(first.has_value());
  // Longer than the pause after which it is repeated: the repetition must not come out.
  CHECK_FALSE(server.receive(1500ms).has_value());
  server.reply(*first, Ack{});
  asking.join();
  CHECK(answered);
  CHECK_FALSE(server.receive(0ms).has_value());
}

TEST_CASE("an answered request that is repeated gets the first answer") {
  RunDir dir;
  zmq::context_t context;
  EchoServer server(context, dir.endpoint("c.sock"));
  zmq::socket_t raw(context, zmq::socket_type::dealer);
  raw.set(zmq::sockopt::linger, 0);
  raw.connect(dir.endpoint("c.sock"));
  const std::string request =
      "\x85\xa1v\x01\xa4kind\xa7request\xa2id\xa3one\xa7"
      "command\xa6status\xa4"
      "body\x80";
  std::string answers[2];
  for (std::string& answer : answers) {
    raw.send(zmq::buffer(request), zmq::send_flags::none);
    zmq::message_t frame;
    raw.set(zmq::sockopt::rcvtimeo, static_cast<int>(kWatchdogMs.count()));
    REQUIRE(raw.recv(frame, zmq::recv_flags::none).has_value());
    answer = frame.to_string();
  }
  CHECK(answers[0] == answers[1]);
  CHECK(server.executed == 1);
}

TEST_CASE("the server sends commands to a peer, which answers; a peer that is gone is unavailable") {
  RunDir dir;
  zmq::context_t context;
  auto bound = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(bound.ok());
  Server& server = **bound;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  const std::string id = (*requester)->send(RegisterWorker{}, "attached");  // before it is connected: kept until it is
  std::string peer;
  REQUIRE(test::eventually([&] {
    (void)(*requester)->receive(1ms);
    auto incoming = server.receive(1ms);
    if (!incoming) return false;
    CHECK(incoming->message.id == id);
    CHECK(incoming->message.attachment == "attached");
    peer = incoming->peer;
    server.reply(*incoming, WorkerPlan{});
    return true;
  }));
  auto plan = (*requester)->receive(kWatchdogMs);
  REQUIRE(plan.has_value());
  CHECK(plan->is_reply);
  CHECK(plan->id == id);

  TaskOrder order;
  order.task = "pagerank";
  order.order = "stop";
  auto sent = server.send(peer, order);
  REQUIRE(sent.ok());
  auto received = (*requester)->receive(kWatchdogMs);
  REQUIRE(received.has_value());
  CHECK_FALSE(received->is_reply);
  CHECK(received->as<TaskOrder>()->order == "stop");
  (*requester)->reply_error(*received, {Code::kNotFound, "no such task", ""});
  auto answer = server.receive(kWatchdogMs);
  REQUIRE(answer.has_value());
  CHECK(answer->message.is_reply);
  CHECK(answer->message.id == *sent);
  REQUIRE(answer->message.error.has_value());
  CHECK(answer->message.error->code == Code::kNotFound);

  requester = Error{Code::kInternal, "closed", ""};
  REQUIRE(test::eventually([&] {
    (void)server.receive(1ms);
    return !server.send(peer, order).ok();
  }));
}

TEST_CASE("commands that arrive while a request waits are kept") {
  RunDir dir;
  zmq::context_t context;
  auto bound = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(bound.ok());
  Server& server = **bound;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  bool sent = false;
  std::thread manager([&] {
    auto incoming = server.receive(kWatchdogMs);
    if (!incoming) return;
    sent = server.send(incoming->peer, WorkerPlan{}).ok();
    server.reply(*incoming, Ack{});
    (void)server.receive(kWatchdogMs);
  });
  CHECK((*requester)->request(RegisterWorker{}, kWatchdogMs).ok());
  CHECK(readable((*requester)->fd(), 0));  // nothing is left in the socket itself: only our own signal can tell
  auto plan = (*requester)->receive(0ms);
  REQUIRE(plan.has_value());
  CHECK(plan->command == WorkerPlan::kCommand);
  (*requester)->reply(*plan, Ack{});
  manager.join();
  CHECK(sent);
}

// The classic trap: the signal of a message that arrived is eaten by a send.
TEST_CASE("fd() still fires for what arrived before a send") {
  RunDir dir;
  zmq::context_t context;
  auto bound = Server::bind(context, dir.endpoint("c.sock"));
  REQUIRE(bound.ok());
  Server& server = **bound;
  auto requester = Requester::connect(context, dir.endpoint("c.sock"));
  REQUIRE(requester.ok());
  (*requester)->send(RegisterWorker{});
  std::string peer;
  REQUIRE(test::eventually([&] {
    (void)(*requester)->receive(1ms);
    auto incoming = server.receive(1ms);
    if (incoming) peer = incoming->peer;
    return incoming.has_value();
  }));
  for (int round = 0; round < 200; ++round) {
    while ((*requester)->receive(0ms)) {
    }
    REQUIRE(server.send(peer, TaskOrder{}).ok());
    (*requester)->send(WorkerReport{});  // may or may not come after the order has arrived
    (*requester)->send(WorkerReport{});
    REQUIRE(readable((*requester)->fd(), static_cast<int>(kWatchdogMs.count())));
    REQUIRE(test::eventually([&] { return (*requester)->receive(0ms).has_value(); }));
    while (server.receive(0ms)) {
    }
  }
}

TEST_CASE("a second binder of a live endpoint is told by whom it is served; a dead one's is taken over") {
  RunDir dir;
  zmq::context_t context;
  const std::string endpoint = dir.endpoint("c.sock");
  {
    auto first = Server::bind(context, endpoint);
    REQUIRE(first.ok());
    auto second = Server::bind(context, endpoint);
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == Code::kAlreadyExists);
    CHECK(second.error().message.find("process " + std::to_string(::getpid())) != std::string::npos);
    auto requester = Requester::connect(context, endpoint);
    REQUIRE(requester.ok());
    (*requester)->send(GetStatus{});  // the first one still has its socket
    CHECK(test::eventually([&] {
      (void)(*requester)->receive(1ms);
      return (*first)->receive(1ms).has_value();
    }));
  }
  CHECK_FALSE(std::filesystem::exists(dir.path / "c.sock"));
  CHECK(Server::bind(context, endpoint).ok());
}

}  // namespace
}  // namespace freeride::bus
