// Ranks on two hosts: pages that they do not share, streams that are threads, and real datagrams between them.
#include "remote_holds.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <thread>

#include "../tests/fake_cuda.h"
#include "fake_worker_test_support.hpp"
#include "freeride/hook.h"
#include "helper.hpp"
#include "stream_marks.hpp"

namespace freeride::hooks {
namespace {

constexpr uint64_t kEpoch = 7, kBytes = 1000;
const Hint::Key kKey{1, 2, 3};

std::string said;  // the last line for people

// Catch2's assertions are the main thread's alone.
void must(bool holds) {
  if (!holds) std::abort();
}

struct Host {
  explicit Host(uint32_t number) {
    RankIdentity identity;
    identity.job = "job";
    identity.device = "cpu-" + std::to_string(number);
    identity.rank = identity.stage = number;
    identity.stages = 2;
    auto made = RankPage::create(identity);
    REQUIRE(made.ok());
    page = std::move(*made);
    auto joined = SentMember::join(dir.path(), "job", 0, number, FREERIDE_SENT_FIRST);
    REQUIRE(joined.ok());
    sent = std::move(*joined);
    auto cuda = CudaDriver::load();
    REQUIRE(cuda.ok());
    auto created = StreamMarks::create(*cuda, *page, *sent);
    REQUIRE(created.ok());
    marks = std::move(*created);
    page->set_leases(StreamMarks::kShortestLeaseNs, StreamMarks::kLeadNs);
    auto remote_made = RemoteHolds::create(*cuda, *page, number, 0, [](const std::string& text) { said = text; });
    REQUIRE(remote_made.ok());
    remote = std::move(*remote_made);
    marks->set_remote(remote.get());
    Helper::Config config;
    config.run_dir = dir.path();
    config.device = identity.device;
    config.external_marks = true;
    helper = std::make_unique<Helper>(config, *page, sent.get(), marks.get());
    REQUIRE(helper->start().ok());
    stream = fake_cuda_stream();
  }
  ~Host() {
    remote->stop();
    helper->stop();
    fake_cuda_synchronize(stream);
    fake_cuda_destroy(stream);
    while (!remote->is_idle()) std::this_thread::yield();  // a hint that is under way
    sent->leave();
  }
  void join(const Host& other, uint32_t rank, bool hints = true) {
    const RemoteHolds::Peer peer = remote->peer_at(rank, "127.0.0.1", other.remote->port());
    REQUIRE(remote->join(hints ? &kKey : nullptr, kEpoch, {&peer, 1}, marks->iteration()).ok());
  }
  Held batch(std::vector<uint32_t> to, std::vector<uint32_t> from, Hold hold = Hold::kNow, uint64_t bytes = kBytes) {
    auto held = marks->batch(stream, to, from, hold, bytes);
    must(held.ok());
    return *held;
  }
  void work(int64_t ms) { fake_cuda_work(stream, ms * kNsPerMs); }
  void end_iteration() {
    must(marks->end_iteration(stream).ok());
    fake_cuda_synchronize(stream);
  }

  const TempDir dir;
  std::unique_ptr<RankPage> page;
  std::unique_ptr<SentMember> sent;
  std::unique_ptr<StreamMarks> marks;
  std::unique_ptr<RemoteHolds> remote;
  std::unique_ptr<Helper> helper;
  void* stream = nullptr;
};

// Rank 0 receives twice in an iteration: once `ms` after its stream has come there, and once with the data there long
// before. `fused`: it sends in the first batch, which the other's receives. The other rank is played beside it.
struct Pair {
  explicit Pair(bool hints = true) : a(0), b(1) {
    a.join(b, 1, hints);
    b.join(a, 0, hints);
  }
  // What a's stream does for a receive whose data exists after so long: what NCCL's would.
  Held receive(int64_t ms, bool fused, bool tell = true) {
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      if (tell) b.batch({0}, fused ? std::vector<uint32_t>{0} : std::vector<uint32_t>{}, Hold::kLater);
    });
    const Held held = a.batch(fused ? std::vector<uint32_t>{1} : std::vector<uint32_t>{}, {1});
    other.join();
    if (held != Held::kStream) a.work(ms);
    a.work(2);  // the transfer
    if (held == Held::kMeasured) REQUIRE(a.marks->received(a.stream).ok());
    return held;
  }
  // Returns what became of the first receive.
  Held iteration(int64_t ms, bool fused = false, bool tell = true) {
    const Held held = receive(ms, fused, tell);
    b.batch({0}, fused ? std::vector<uint32_t>{0} : std::vector<uint32_t>{}, Hold::kLater);
    fake_cuda_synchronize(b.stream);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const Held second = a.batch(fused ? std::vector<uint32_t>{1} : std::vector<uint32_t>{}, {1});
    CHECK(second != Held::kStream);
    a.work(2);
    if (second == Held::kMeasured) REQUIRE(a.marks->received(a.stream).ok());
    a.end_iteration();
    b.end_iteration();
    return held;
  }
  void arm(int which) {
    a.remote->set_arm(which);
    b.remote->set_arm(which);
  }
  void learn(int64_t ms, bool fused = false) {
    arm(0);
    for (int i = 0; i < 14; ++i) CHECK(iteration(ms, fused) != Held::kStream);
    arm(2);
    CHECK(iteration(ms, fused) != Held::kStream);  // counts from the next one on
  }
  Host a, b;
};

}  // namespace

TEST_CASE("remote: a wait is learned in plain iterations, held, and ended by the hint") {
  Pair pair;
  pair.learn(30);
  CHECK(pair.a.remote->counters().plain_iterations >= 10);
  CHECK(pair.a.remote->counters().holdable_ns > 0);
  bool by_hint = false;
  for (int i = 0; i < 20 && !by_hint; ++i) {  // on a busy machine data may come after the ceiling
    CHECK(pair.iteration(8) == Held::kStream);
    by_hint = pair.a.remote->counters().by_hint > 0;
  }
  CHECK(by_hint);
  std::array<RemoteHolds::Hold, 64> holds;
  const size_t count = pair.a.remote->take_holds(holds);
  REQUIRE(count > 0);
  CHECK(holds[0].wait == 1);
  CHECK(holds[0].posted_ns > holds[0].begin_ns);
  CHECK(holds[0].ceiling_ns > 10 * kNsPerMs);
  CHECK(holds[0].ceiling_ns < 120 * kNsPerMs);  // plain receives took 60 and no transfer is held
  CHECK_FALSE(pair.a.remote->is_off());
}

TEST_CASE("remote: without hints a hold ends at its ceiling") {
  Pair pair(false);
  pair.learn(30);
  CHECK(pair.iteration(30) == Held::kStream);
  CHECK(pair.a.remote->counters().by_hint == 0);
  CHECK(pair.a.remote->counters().by_ceiling == 1);
  CHECK(pair.a.remote->counters().hints_sent + pair.b.remote->counters().hints_sent == 0);
}

TEST_CASE("remote: forged, lost and late hints do nothing but that a hold lasts until its ceiling") {
  Pair pair;
  pair.learn(30);
  for (const RemoteHolds::Faults& faults :
       {RemoteHolds::Faults{0, 0, true}, RemoteHolds::Faults{0, 1000, false}, RemoteHolds::Faults{60 * kNsPerSec}}) {
    pair.a.remote->set_faults(faults);
    const uint64_t before = pair.a.remote->counters().by_ceiling;
    CHECK(pair.iteration(5) == Held::kStream);
    CHECK(pair.a.remote->counters().by_ceiling == before + 1);
  }
  CHECK(pair.a.remote->counters().hints_refused > 0);
}

TEST_CASE("remote: a batch that also sends is held only where its peer's receives just that") {
  Pair pair;
  pair.learn(30, true);
  CHECK(pair.iteration(30, true) == Held::kStream);
  Pair silent(false);  // nobody tells what the peer's batches receive
  silent.learn(30, true);
  CHECK(silent.iteration(30, true) == Held::kPlain);
}

TEST_CASE("remote: strangers' datagrams and replays change nothing") {
  Pair pair;
  pair.learn(30);
  const int stranger = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  REQUIRE(stranger >= 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(pair.a.remote->port());
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  const auto throw_at = [&](std::span<const uint8_t> bytes) {
    (void)sendto(stranger, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to));
  };
  Hint hint;
  hint.epoch = kEpoch;
  hint.sender = 1;
  hint.receiver = 0;
  hint.count = uint64_t{1} << 50;
  hint.off = true;
  const uint64_t before = pair.a.remote->counters().hints_refused;
  throw_at(encode(hint, Hint::Key{9}));  // another key
  hint.epoch = kEpoch + 1;
  throw_at(encode(hint, kKey));  // of another time
  hint.epoch = kEpoch;
  hint.receiver = 1;
  throw_at(encode(hint, kKey));  // for another rank
  hint.receiver = 0;
  hint.sender = 5;
  throw_at(encode(hint, kKey));  // of nobody that we know
  throw_at({});
  hint.sender = 1;
  hint.count = 1;
  hint.off = false;
  for (int i = 0; i < 10; ++i) throw_at(encode(hint, kKey));  // a replay of the first
  const uint64_t held = pair.a.remote->counters().held;
  CHECK(pair.iteration(30) == Held::kStream);
  CHECK(pair.a.remote->counters().held == held + 1);
  CHECK(pair.a.remote->counters().hints_refused == before + 5);
  CHECK_FALSE(pair.a.remote->is_off());
  close(stranger);
}

TEST_CASE("remote: nothing is held before it is known, nor what is posted early, nor another size, nor when off") {
  Pair pair;
  CHECK(pair.a.remote->arm() == policy::Arm::kPlain);
  CHECK(pair.iteration(5) == Held::kMeasured);
  pair.learn(30);
  CHECK(pair.a.batch({}, {1}, Hold::kNever) == Held::kPlain);
  CHECK(pair.a.batch({}, {1}, Hold::kLater) == Held::kPlain);
  pair.b.batch({0}, {});
  pair.b.batch({0}, {});
  CHECK(pair.a.batch({}, {1}, Hold::kNow, kBytes + 1) == Held::kPlain);
  pair.a.page->switch_off(FREERIDE_HOOK_DISABLED);
  CHECK(pair.a.batch({}, {1}) == Held::kPlain);
}

TEST_CASE("remote: a rank that has turned holds off takes the others along") {
  Pair pair;
  pair.learn(30);
  Hint hint;
  hint.epoch = kEpoch;
  hint.sender = 1;
  hint.receiver = 0;
  hint.count = 1;
  hint.off = true;
  const int peer = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(pair.a.remote->port());
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  const auto bytes = encode(hint, kKey);
  REQUIRE(sendto(peer, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)) > 0);
  close(peer);
  CHECK(pair.iteration(5) == Held::kPlain);
  CHECK(pair.a.remote->is_off());
  CHECK(said.find("not held any more") != std::string::npos);
}

TEST_CASE("remote: in plain iterations and in those without leases the page promises nothing") {
  Pair pair;
  pair.learn(30);
  const auto low = [&] { return pages::load_relaxed(pair.a.page->page().learned[0].low_ns); };
  const auto settle = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  settle();
  CHECK(low() > 10 * kNsPerMs);
  pair.arm(1);
  pair.iteration(30);  // the last with leases
  settle();
  CHECK(low() == 0);
  CHECK(pair.iteration(30) == Held::kStream);  // held all the same
  settle();
  CHECK(low() == 0);
  pair.arm(0);
  pair.iteration(30);
  settle();
  CHECK(low() == 0);
  CHECK(pair.iteration(30) == Held::kMeasured);
  CHECK(pages::load_relaxed(pair.a.page->page().hook_state) == FREERIDE_HOOK_ACTIVE);
}

TEST_CASE("remote: several messages in one batch are posted as ever, before they are learned and after") {
  Pair pair;
  CHECK(pair.a.batch({}, {1, 1}) == Held::kPlain);
  CHECK(pair.a.batch({1, 1}, {1}) == Held::kPlain);
  CHECK(pair.a.batch({}, {1, 2}) == Held::kPlain);
  CHECK(pair.a.batch({2}, {1}) == Held::kPlain);
  CHECK(pair.a.remote->counters().measured == 0);
}

TEST_CASE("remote: a port that another has is said, and is no socket") {
  Pair pair;
  const auto taken = RemoteHolds::create(*CudaDriver::load(), *pair.a.page, 0, pair.a.remote->port(), nullptr);
  REQUIRE_FALSE(taken.ok());
  CHECK(taken.error().text().find("socket for hints") != std::string::npos);
}

TEST_CASE("remote: a peer that has ended in the middle costs a hold until its ceiling") {
  Pair pair;
  pair.learn(30);
  pair.b.remote->stop();  // sends nothing any more
  CHECK(pair.iteration(30) == Held::kStream);
  CHECK(pair.a.remote->counters().by_ceiling == 1);
}

}  // namespace freeride::hooks
