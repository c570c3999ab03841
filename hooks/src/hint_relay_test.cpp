// A stream that is a thread, and a socket that hints come to.
#include "hint_relay.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "../tests/fake_cuda.h"
#include "freeride/base/clock.hpp"

namespace freeride::hooks {
namespace {

struct Setting {
  Setting() {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    receiving = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sending = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    socklen_t bytes = sizeof(here);
    REQUIRE(bind(receiving.get(), reinterpret_cast<sockaddr*>(&here), bytes) == 0);
    REQUIRE(getsockname(receiving.get(), reinterpret_cast<sockaddr*>(&here), &bytes) == 0);
    std::memcpy(&to.address, &here, sizeof(here));
    to.bytes = sizeof(here);
    auto cuda = CudaDriver::load();
    REQUIRE(cuda.ok());
    relay = std::make_unique<HintRelay>(*cuda, sending, sent);
    REQUIRE(relay->open().ok());
    stream = fake_cuda_stream();
  }
  ~Setting() {
    fake_cuda_synchronize(stream);
    while (!relay->is_idle()) std::this_thread::yield();
    fake_cuda_destroy(stream);
  }
  void add(uint64_t iteration, uint32_t word) {
    REQUIRE(
        relay->add(stream, to, std::array<uint8_t, Hint::kBytes>{static_cast<uint8_t>(word)}, iteration, word).ok());
  }
  void finish() {
    fake_cuda_synchronize(stream);
    while (!relay->is_idle()) std::this_thread::yield();
  }
  // First bytes of the datagrams that are there.
  std::vector<int> received() const {
    std::vector<int> found;
    std::array<uint8_t, Hint::kBytes> bytes;
    while (recv(receiving.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) found.push_back(bytes[0]);
    return found;
  }
  Fd receiving, sending;
  HintAddress to;
  std::atomic<uint64_t> sent{0};
  std::unique_ptr<HintRelay> relay;
  void* stream = nullptr;
};

}  // namespace

TEST_CASE("hint relay: the driver's function tells what nobody has seen") {
  Setting setting;
  setting.add(0, 1);
  setting.finish();
  CHECK(setting.received() == std::vector<int>{1});
  CHECK(setting.sent == 1);
  CHECK(setting.relay->look(1, SteadyClock::now()) == INT64_MAX);
  CHECK(setting.received().empty());  // it has been told
}

TEST_CASE("hint relay: what the word shows is told at once, and once") {
  Setting setting;
  fake_cuda_work(setting.stream, 200 * kNsPerMs);
  for (const uint32_t word : {1, 2, 3}) setting.add(0, word);
  setting.relay->look(0, SteadyClock::now());
  CHECK(setting.received().empty());
  setting.relay->look(2, SteadyClock::now());  // the stream is past the first two
  CHECK(setting.received() == std::vector<int>{1, 2});
  setting.relay->look(2, SteadyClock::now());
  CHECK(setting.received().empty());
  setting.finish();
  CHECK(setting.received() == std::vector<int>{3});
  CHECK(setting.sent == 3);
}

TEST_CASE("hint relay: a word that stands for an older message tells nothing of the next one") {
  Setting setting;
  setting.add(0, 5);
  setting.finish();
  CHECK(setting.received() == std::vector<int>{5});
  fake_cuda_work(setting.stream, 100 * kNsPerMs);
  setting.add(0, 5);  // to another rank, which has got as many
  setting.relay->look(5, SteadyClock::now());
  CHECK(setting.received().empty());
  setting.finish();
  CHECK(setting.received() == std::vector<int>{5});
}

TEST_CASE("hint relay: it looks around the moment when a message of an iteration usually comes") {
  Setting setting;
  int64_t now_ns = 1'000 * kNsPerMs;
  uint32_t word = 0;
  // Two messages an iteration: 30 ms after the other's, and 10 ms after the first.
  for (uint64_t iteration = 0; iteration < 6; ++iteration) {
    for (const int64_t after_ms : {30, 10}) {
      fake_cuda_work(setting.stream, 20 * kNsPerMs);
      setting.add(iteration, ++word);
      const int64_t next_ns = setting.relay->look(word - 1, now_ns);
      if (iteration == 5) {
        CHECK(next_ns == now_ns + after_ms * kNsPerMs - HintRelay::kBefore);
        const int64_t inside_ns = next_ns + 10'000;
        CHECK(setting.relay->look(word - 1, inside_ns) == inside_ns + HintRelay::kLook);
        // The driver's function is what is left for one that does not come.
        CHECK(setting.relay->look(word - 1, now_ns + 100 * kNsPerMs) == INT64_MAX);
      }
      now_ns += after_ms * kNsPerMs;
      setting.relay->look(word, now_ns);
    }
  }
  setting.finish();
  CHECK(setting.sent == word);
}

TEST_CASE("hint relay: without room a hint is lost, and nothing else") {
  Setting setting;
  fake_cuda_work(setting.stream, 300 * kNsPerMs);
  for (uint32_t word = 1; word <= HintRelay::kOutgoing + 10; ++word) setting.add(0, word);
  setting.relay->stop();
  setting.finish();
  CHECK(setting.sent == 0);
}

}  // namespace freeride::hooks
