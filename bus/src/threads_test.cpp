// What becomes of the bus's threads when ZeroMQ fails in a way that waiting does not mend. This program's zmq_poll() is
// found before the library's.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>

#include "freeride/base/files.hpp"
#include "freeride/bus/network.hpp"
#include "freeride/bus/relay.hpp"
#include "freeride/bus/sockets.hpp"
#include "test_util.hpp"

namespace {
std::atomic<int> error{0};  // of every zmq_poll() from now on
std::atomic<int> failed{0};
}  // namespace

extern "C" __attribute__((visibility("default"))) int zmq_poll(zmq_pollitem_t* items, int count, long timeout) {
  static const auto real = reinterpret_cast<decltype(&zmq_poll)>(::dlsym(RTLD_NEXT, "zmq_poll"));  // NOLINT
  if (error == 0) return real(items, count, timeout < 0 ? 10 : std::min(timeout, 10L));
  ++failed;
  errno = error;
  return -1;
}

namespace freeride::bus::test {
namespace {

constexpr int kHealthy = 77;

struct End {
  int code;
  std::string said;
};

// A process with one end of the bus, made by `start`, whose next wait fails with `with`. One that survives a hundred of
// these ends with kHealthy.
End fail_in(int with, const std::function<std::shared_ptr<void>(zmq::context_t&, const RunDir&)>& start) {
  const RunDir dir;
  const auto log = dir.path / "said";
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const int said = ::open(log.c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(said, 1);
    ::dup2(said, 2);
    zmq::context_t context;
    const auto it = start(context, dir);
    if (it == nullptr) ::_exit(2);
    error = with;
    while (failed < 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::_exit(kHealthy);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_file(log, 1 << 20).value()};
}

std::shared_ptr<void> broker(zmq::context_t& context, const RunDir& dir) {
  auto started = Broker::start(context, dir.endpoint("publish.sock"), dir.endpoint("events.sock"));
  return started ? std::shared_ptr<Broker>(std::move(*started)) : nullptr;
}

std::shared_ptr<void> relay(zmq::context_t& context, const RunDir& dir) {
  const KeyPair manager = make_key_pair().value(), node = make_key_pair().value();
  RelayConfig config;
  config.manager = "tcp://127.0.0.1:9";  // nobody is there, nor need be
  config.key = {node.public_key, node.secret_key, manager.public_key, "node.key"};
  config.commands_endpoint = dir.endpoint("commands.sock");
  config.publish_endpoint = dir.endpoint("publish.sock");
  config.events_endpoint = dir.endpoint("events.sock");
  auto started = Relay::start(context, config);
  return started ? std::shared_ptr<Relay>(std::move(*started)) : nullptr;
}

std::shared_ptr<void> doorkeeper(zmq::context_t& context, const RunDir&) {
  auto started =
      Doorkeeper::start(context, make_key_pair().value().secret_key, [](const std::string&) { return true; });
  return started ? std::shared_ptr<Doorkeeper>(std::move(*started)) : nullptr;
}

}  // namespace

TEST_CASE("a thread of the bus that fails ends its process, with its name and the reason") {
  for (const auto& [start, name] : {std::pair(&broker, "the event broker has failed (Bad address)"),
                                    std::pair(&relay, "the way to the manager has failed (Bad address)"),
                                    std::pair(&doorkeeper, "the check of keys has failed (Bad address)")}) {
    INFO(name);
    const End end = fail_in(EFAULT, start);
    CHECK(end.code == 1);
    INFO(end.said);
    CHECK(end.said.find(name) != std::string::npos);
  }
}

TEST_CASE("a signal in a wait ends no thread of the bus") {
  for (const auto& start : {&broker, &relay, &doorkeeper}) CHECK(fail_in(EINTR, start).code == kHealthy);
}

}  // namespace freeride::bus::test
