// Against a CUDA driver whose streams are threads (hooks/tests/fake_cuda.cpp): order, poisoning, bounds, failures.
#include "stream_marks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "../tests/fake_cuda.h"
#include "fake_worker_test_support.hpp"
#include "freeride/hook.h"
#include "helper.hpp"
#include "idle_phases.hpp"

namespace freeride::hooks {
namespace {

constexpr auto kLong = std::chrono::seconds(30);

// A rank with its GPU's stream and its helper thread.
struct Rank {
  explicit Rank(const std::string& folder, uint32_t number, uint32_t ranks = 2, uint64_t counted = 0) {
    RankIdentity identity;
    identity.job = "job";
    identity.device = "cpu-" + std::to_string(number);
    identity.rank = identity.stage = number;
    identity.stages = std::max(ranks, number + 1);
    auto made = RankPage::create(identity);
    REQUIRE(made.ok());
    page = std::move(*made);
    auto joined = SentMember::join(folder, "job", number, 100 + number, FREERIDE_SENT_FIRST);
    REQUIRE(joined.ok());
    sent = std::move(*joined);
    auto cuda = CudaDriver::load();
    REQUIRE(cuda.ok());
    auto created = StreamMarks::create(*cuda, *page, *sent, counted);
    REQUIRE(created.ok());
    marks = std::move(*created);
    page->set_leases(StreamMarks::kShortestLeaseNs, StreamMarks::kLeadNs);
    Helper::Config config;
    config.run_dir = folder;
    config.device = identity.device;
    config.external_marks = true;
    phases = std::make_unique<IdlePhases>(*page);
    helper = std::make_unique<Helper>(config, *page, sent.get(), marks.get(), phases.get());
    REQUIRE(helper->start().ok());
    stream = fake_cuda_stream();
  }
  ~Rank() {
    helper->stop();
    fake_cuda_destroy(stream);
    sent->leave();
  }
  Held batch(std::vector<uint32_t> to, std::vector<uint32_t> from, Hold hold = Hold::kNow) {
    for (uint32_t& rank : to) rank += 100;
    for (uint32_t& rank : from) rank += 100;
    auto held = marks->batch(stream, to, from, hold);
    REQUIRE(held.ok());
    return *held;
  }
  void send(uint32_t to) { batch({to}, {}); }
  Held meet(std::vector<uint32_t> members, std::vector<uint32_t> awaited, bool at_once = true) {
    for (uint32_t& rank : members) rank += 100;
    for (uint32_t& rank : awaited) rank += 100;
    auto held = marks->meet(stream, members, awaited, at_once);
    REQUIRE(held.ok());
    return *held;
  }
  bool has_met(uint32_t other, uint32_t number) const {
    return sent->counter_from(other, SentMember::Row::kMet) >= FREERIDE_SENT_FIRST + number;
  }
  uint64_t post_early(void* apart, std::vector<uint32_t> from) {
    for (uint32_t& rank : from) rank += 100;
    auto posted = marks->post_early(apart, from);
    REQUIRE(posted.ok());
    return *posted;
  }
  Held wait(uint64_t early) {
    auto held = marks->wait(stream, early);
    REQUIRE(held.ok());
    return *held;
  }
  // The function runs on the stream.
  void then(std::function<void()> function) {
    fake_cuda_run(
        stream,
        [](void* context) {
          std::unique_ptr<std::function<void()>> call(static_cast<std::function<void()>*>(context));
          (*call)();
        },
        new std::function<void()>(std::move(function)));
  }
  uint64_t word() const { return pages::load_acquire(page->page().state_word); }

  std::unique_ptr<RankPage> page;
  std::unique_ptr<SentMember> sent;
  std::unique_ptr<StreamMarks> marks;
  std::unique_ptr<IdlePhases> phases;
  std::unique_ptr<Helper> helper;
  void* stream = nullptr;
};

bool eventually(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + kLong; std::chrono::steady_clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace

TEST_CASE("a held receive comes after its data, and is marked while it waits") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);  // the first message: from here on b knows that a counts
  REQUIRE(eventually([&] { return b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 1; }));
  CHECK(b.batch({}, {0}) == Held::kPlain);  // the data is there

  std::atomic<bool> sent{false}, early{false}, received{false};
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  b.then([&] {
    early = !sent;
    received = true;
  });
  REQUIRE(eventually([&] { return b.word() == FREERIDE_STATE(0, 2); }));
  CHECK_FALSE(received);
  a.then([&] { sent = true; });
  a.send(1);
  REQUIRE(eventually([&] { return received.load(); }));
  CHECK_FALSE(early);
  CHECK(b.word() == FREERIDE_STATE(0, 0));
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  REQUIRE(eventually([&] { return pages::load_acquire(b.page->page().iteration) == 1; }));
  CHECK(pages::load_acquire(b.page->page().waits) == 2);
  CHECK(pages::load_acquire(b.page->page().hook_state) == FREERIDE_HOOK_ACTIVE);
}

TEST_CASE("an idle phase begins once the stream has come to it, and ends at training's word") {
  const TempDir dir;
  Rank rank(dir.path(), 0);
  const auto& page = rank.page->page();
  const auto begin = [&] {
    IdlePhases::Wish wish;
    wish.name = "rollout";
    wish.by_gpu = true;
    const auto word = rank.phases->begin(wish, SteadyClock::now());
    REQUIRE(word.ok());
    REQUIRE(rank.marks->mark_phase(rank.stream, *word).ok());
    rank.helper->look();
    return FREERIDE_PHASE_NUMBER(*word);
  };
  std::atomic<bool> go{false};
  const auto busy = [&] {
    rank.then([&] {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  };
  busy();
  uint64_t number = begin();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(pages::load_acquire(page.idle_begun) == 0);
  go = true;
  REQUIRE(eventually([&] { return FREERIDE_PHASE_NUMBER(pages::load_acquire(page.idle_begun)) == number; }));
  CHECK(rank.phases->end(number, SteadyClock::now()));
  CHECK(pages::load_acquire(page.bubbles) == 1);

  // Training was sooner than its GPU: the mark that comes later is of a phase that has ended.
  go = false;
  busy();
  number = begin();
  CHECK(rank.phases->end(number, SteadyClock::now()));
  go = true;
  REQUIRE(eventually([&] { return FREERIDE_PHASE_NUMBER(pages::load_acquire(page.idle_marked)) == number; }));
  fake_cuda_capture(rank.stream, 1);
  CHECK_FALSE(rank.marks->mark_phase(rank.stream, FREERIDE_PHASE(9, 0)).ok());
  fake_cuda_capture(rank.stream, 0);
  CHECK(FREERIDE_PHASE_NUMBER(pages::load_acquire(page.idle_begun)) == number - 1);
}

TEST_CASE("a small collective is held until all have come to it, and marked meanwhile") {
  const TempDir dir;
  Rank a(dir.path(), 0, 3), b(dir.path(), 1, 3), c(dir.path(), 2, 3);
  CHECK(a.meet({1, 2}, {1, 2}) == Held::kPlain);  // that the others count these is not known yet
  CHECK(b.meet({0, 2}, {0, 2}) == Held::kPlain);
  c.meet({0, 1}, {0, 1});
  REQUIRE(eventually([&] { return a.has_met(1, 1) && a.has_met(2, 1) && b.has_met(0, 1) && b.has_met(2, 1); }));

  std::atomic<bool> came{false}, early{false}, done{false};
  CHECK(a.meet({1, 2}, {1, 2}) == Held::kStream);
  a.then([&] {
    early = !came;
    done = true;
  });
  CHECK(b.meet({0, 2}, {0, 2}) == Held::kStream);
  REQUIRE(eventually([&] { return a.word() == FREERIDE_STATE(0, 2) && b.word() == FREERIDE_STATE(0, 2); }));
  CHECK_FALSE(done);
  c.then([&] { came = true; });
  CHECK(c.meet({0, 1}, {0, 1}) == Held::kPlain);  // the last one does not wait
  REQUIRE(eventually([&] { return done.load(); }));
  CHECK_FALSE(early);
  CHECK(a.marks->counters().broken == 0);
}

TEST_CASE("a broadcast waits for its source only, and one beside training's stream for nobody") {
  const TempDir dir;
  Rank a(dir.path(), 0, 3), b(dir.path(), 1, 3), c(dir.path(), 2, 3);
  CHECK(c.meet({0, 1}, {}) == Held::kPlain);
  REQUIRE(eventually([&] { return a.has_met(2, 1); }));
  CHECK(a.meet({1, 2}, {2}) == Held::kPlain);  // it has been there
  CHECK(a.meet({1, 2}, {1, 2}, false) == Held::kPlain);
  CHECK(a.word() == FREERIDE_STATE(0, 0));
  // What b has not come to holds nobody who waits for c alone.
  CHECK(c.meet({0, 1}, {0, 1}, false) == Held::kPlain);
  CHECK(a.meet({1, 2}, {2}) == Held::kStream);
  std::atomic<bool> done{false};
  a.then([&] { done = true; });
  CHECK(c.meet({0, 1}, {}) == Held::kPlain);
  CHECK(eventually([&] { return done.load(); }));
}

TEST_CASE("a rank that misses a collective holds the others until its next iteration, and one that leaves nobody") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  const auto both = [&] {
    a.meet({1}, {1});
    b.meet({0}, {0});
  };
  both();
  REQUIRE(eventually([&] { return a.has_met(1, 1) && b.has_met(0, 1); }));
  std::atomic<int> done{0};
  CHECK(b.meet({0}, {0}) == Held::kStream);
  b.then([&] { ++done; });
  REQUIRE(a.marks->end_iteration(a.stream).ok());
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  CHECK(done == 0);
  a.meet({1}, {1});  // of the next iteration: above all that b can want of this one
  CHECK(eventually([&] { return done == 1; }));
  b.meet({0}, {0});
  CHECK(b.meet({0}, {0}) == Held::kStream);
  b.then([&] { ++done; });
  a.sent->release(FREERIDE_RANK_DISABLED);
  CHECK(eventually([&] { return done == 2; }));
  CHECK(b.meet({0}, {0}) == Held::kPlain);
  a.marks->rejoin();
  a.meet({1}, {1});
  CHECK(eventually([&] { return b.has_met(0, 1024 + 2); }));
  CHECK(b.marks->counters().broken == 0);
}

TEST_CASE("a rank without a bubble notes whether its sources are on other hosts, or were never waited for") {
  const TempDir dir;
  Rank a(dir.path(), 0);
  const auto noted = [&] { return static_cast<policy::RankWhy>(pages::load_relaxed(a.page->page().noted)); };
  REQUIRE(a.marks->end_iteration(a.stream).ok());
  CHECK(noted() == policy::RankWhy::kNone);
  CHECK(a.batch({}, {1}) == Held::kPlain);
  REQUIRE(a.marks->end_iteration(a.stream).ok());
  CHECK(noted() == policy::RankWhy::kPeersElsewhere);
  Rank b(dir.path(), 1);
  CHECK(a.batch({}, {1}) == Held::kPlain);  // b has not said a word
  REQUIRE(a.marks->end_iteration(a.stream).ok());
  CHECK(noted() == policy::RankWhy::kNeverWaits);
}

TEST_CASE("who is not hooked, not here, or does not count, is not waited for") {
  const TempDir dir;
  Rank a(dir.path(), 0);
  CHECK(a.batch({}, {1}) == Held::kPlain);                 // nobody
  auto old = SentMember::join(dir.path(), "job", 1, 101);  // counts on the host
  REQUIRE(old.ok());
  Rank c(dir.path(), 2);  // before one has left: nobody joins a page after that
  (*old)->produce(0);
  CHECK(a.batch({}, {1}) == Held::kPlain);
  (*old)->leave();
  CHECK(a.batch({}, {1}) == Held::kPlain);
  CHECK(a.batch({}, {2}) == Held::kPlain);                // hooked, but has not said a word
  CHECK(a.batch({}, {2}, Hold::kNever) == Held::kPlain);  // not to be held
  for (int i = 0; i < 3; ++i) c.send(0);
  REQUIRE(eventually([&] { return a.sent->counter_from(2) == FREERIDE_SENT_FIRST + 3; }));
  c.sent->release(FREERIDE_RANK_DISABLED);
  CHECK(a.batch({}, {2}) == Held::kPlain);
  CHECK(pages::load_acquire(a.page->page().bubbles) == 0);
}

TEST_CASE("the host posts ahead of its GPU whatever it waits for, and the lengths of long waits are promised") {
  const TempDir dir;
  FakeWorker worker(dir.path(), "cpu-1");
  Rank a(dir.path(), 0), b(dir.path(), 1);
  worker.accept("OK");
  REQUIRE(eventually([&] { return b.helper->connected(); }));
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  constexpr int kIterations = 20, kAhead = 2;
  std::atomic<int> produced{0}, early{0}, done{0};
  int held = 0;
  for (int i = 0; i < kIterations; ++i) {
    held += b.batch({}, {0}) == Held::kStream;
    b.then([&, i] {
      early += produced < i + 1;
      ++done;
    });
    REQUIRE(b.marks->end_iteration(b.stream).ok());
    if (i < kAhead) continue;
    CHECK(done == i - kAhead);  // posted, while the data of two iterations before does not exist
    fake_cuda_work(a.stream, 20 * kNsPerMs);
    a.then([&] { ++produced; });
    a.send(1);
    REQUIRE(eventually([&] { return done == i - kAhead + 1; }));
  }
  CHECK(held == kIterations);
  for (int i = 0; i < kAhead; ++i) {
    a.then([&] { ++produced; });
    a.send(1);
  }
  REQUIRE(eventually([&] { return pages::load_acquire(b.page->page().iteration) == kIterations + 1; }));
  CHECK(early == 0);
  CHECK(b.marks->counters().broken == 0);
  const auto& learned = b.page->page().learned[0];
  CHECK(pages::load_relaxed(learned.low_ns) >= uint64_t{StreamMarks::kShortestLeaseNs - StreamMarks::kLeadNs});
  CHECK(pages::load_relaxed(learned.low_ns) == pages::load_relaxed(learned.high_ns));  // no lease follows the bubble
  CHECK(pages::load_relaxed(b.page->page().waits) == 1);
  CHECK(pages::load_acquire(b.page->page().expected_ns) > 0);  // the worker was told before bubbles began
}

TEST_CASE("a stream that waits for an event behind a hold waits for the hold, and no other stream does") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  auto& followers = b.marks->followers();
  const auto cuda = CudaDriver::load();
  REQUIRE(cuda.ok());
  void* const other = fake_cuda_stream();
  void* const third = fake_cuda_stream();
  void* event = *cuda->new_event();
  void* next = *cuda->new_event();
  const auto record = [&](void* what, void* stream) {
    followers.recorded(what, stream);
    REQUIRE(cuda->record(what, stream).ok());
  };
  const auto wait = [&](void* stream, void* what) {
    REQUIRE(followers.about_to_wait(stream, what).ok());
    REQUIRE(cuda->wait_event(stream, what).ok());
  };
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  record(event, b.stream);
  wait(other, event);
  CHECK(followers.count() == 0);  // nothing is held
  record(next, b.stream);         // before the hold
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  wait(third, next);
  CHECK(followers.count() == 0);
  record(event, b.stream);
  wait(other, event);
  CHECK(followers.count() == 1);
  wait(other, event);  // it does already
  wait(b.stream, event);
  CHECK(followers.count() == 1);
  record(next, other);  // behind the hold, too
  wait(third, next);
  CHECK(followers.count() == 2);
  fake_cuda_capture(b.stream, 0);
  std::atomic<bool> over{false};
  fake_cuda_run(
      third, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &over);
  CHECK_FALSE(over);
  a.send(1);
  REQUIRE(eventually([&] { return over.load(); }));
  record(event, b.stream);
  wait(other, event);
  CHECK(followers.count() == 2);  // the hold is over
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  record(event, b.stream);
  fake_cuda_capture(other, 1);
  REQUIRE(followers.about_to_wait(other, event).ok());  // a graph is not told to
  CHECK(followers.count() == 2);
  fake_cuda_capture(other, 0);
  a.sent->release(FREERIDE_RANK_DEAD);  // lets all of them go
  wait(other, event);
  CHECK(followers.count() == 2);
  fake_cuda_synchronize(b.stream);
  for (void* stream : {other, third}) {
    fake_cuda_synchronize(stream);
    fake_cuda_destroy(stream);
  }
}

TEST_CASE("a receive posted early is held apart, and marked where training waits for it") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  void* apart = fake_cuda_stream();
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.marks->end_iteration(b.stream).ok());

  std::atomic<bool> posted{false}, worked{false}, needed{false};
  const uint64_t early = b.post_early(apart, {0});
  REQUIRE(early != 0);
  const auto set = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); };
  fake_cuda_run(apart, set, &posted);
  b.then([&] { worked = true; });
  REQUIRE(eventually([&] { return worked.load(); }));
  CHECK_FALSE(posted);
  CHECK(b.word() == FREERIDE_STATE(1, 0));
  REQUIRE(b.wait(early) == Held::kStream);
  b.then([&] { needed = true; });
  REQUIRE(eventually([&] { return b.word() == FREERIDE_STATE(1, 1); }));
  CHECK_FALSE(posted);
  CHECK_FALSE(needed);
  a.send(1);
  REQUIRE(eventually([&] { return posted && needed; }));
  CHECK(b.word() == FREERIDE_STATE(1, 0));

  // Waits are numbered in the order in which training waits, not in that of posting.
  const uint64_t first = b.post_early(apart, {0}), second = b.post_early(apart, {0});
  CHECK(b.batch({}, {0}) == Held::kStream);
  REQUIRE(eventually([&] { return b.word() == FREERIDE_STATE(1, 2); }));
  for (int i = 0; i < 3; ++i) a.send(1);
  fake_cuda_synchronize(b.stream);
  CHECK(b.wait(second) == Held::kPlain);  // it is there
  CHECK(b.wait(first) == Held::kPlain);
  fake_cuda_synchronize(apart);

  const uint64_t many = b.post_early(apart, {0, 0});  // held apart for the first of them
  REQUIRE(many != 0);
  a.send(1);
  fake_cuda_synchronize(apart);
  CHECK(b.wait(many) == Held::kStream);  // and here for both
  a.send(1);
  fake_cuda_synchronize(b.stream);
  CHECK(b.marks->counters().broken == 0);
  fake_cuda_destroy(apart);
}

TEST_CASE("an early receive from several sources, or from who is not hooked, is counted only") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1), c(dir.path(), 2);
  void* apart = fake_cuda_stream();
  for (Rank* rank : {&a, &c}) rank->send(1);
  REQUIRE(eventually(
      [&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST && b.sent->counter_from(2) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0, 2}) == Held::kPlain);
  const uint64_t both = b.post_early(apart, {0, 2});
  c.sent->release(FREERIDE_RANK_DISABLED);
  const uint64_t off = b.post_early(apart, {2});
  fake_cuda_synchronize(apart);
  CHECK(b.wait(both) == Held::kPlain);
  CHECK(b.wait(off) == Held::kPlain);
  CHECK(b.wait(0) == Held::kPlain);
  a.send(1);
  a.send(1);
  CHECK(eventually([&] { return b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 3; }));
  CHECK(b.batch({}, {0}) == Held::kPlain);  // the third message from a, by b's own count
  fake_cuda_destroy(apart);
}

TEST_CASE("a receive held apart that blocks the training is let go, and after the second time none is held") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  void* apart = fake_cuda_stream();
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  for (int i = 0; i < 3; ++i) {  // messages that never come
    REQUIRE(b.marks->end_iteration(b.stream).ok());
    b.post_early(apart, {0});
    fake_cuda_synchronize(apart);
  }
  CHECK(b.marks->counters().broken == 2);
  fake_cuda_destroy(apart);
}

TEST_CASE("1F1B's batches that send and receive do not lock each other up") {
  const TempDir dir;
  Rank first(dir.path(), 0), last(dir.path(), 1);
  constexpr int kIterations = 8, kBatches = 4;
  // As NCCL does it: a message goes over once both ends have come to it, and each end waits for that on its stream.
  struct Messages {
    std::atomic<int> sent{0}, received{0};
  } forwards, backwards;
  std::atomic<bool> stop{false};
  const auto exchange = [&](Rank& rank, Messages* out, Messages* in) {
    rank.then([&stop, out, in] {
      const int out_to = out != nullptr ? ++out->sent : 0;
      const int in_to = in != nullptr ? ++in->received : 0;
      while (!stop && ((out != nullptr && out->received < out_to) || (in != nullptr && in->sent < in_to))) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    });
  };
  const auto batch = [&](Rank& rank, uint32_t peer, Messages* out, Messages* in) {
    const auto to = out != nullptr ? std::vector<uint32_t>{peer} : std::vector<uint32_t>{};
    const auto from = in != nullptr ? std::vector<uint32_t>{peer} : std::vector<uint32_t>{};
    rank.batch(to, from);
    exchange(rank, out, in);
  };
  std::thread other([&] {
    for (int i = 0; i < kIterations; ++i) {
      batch(last, 0, nullptr, &forwards);
      for (int k = 0; k < kBatches; ++k) {
        fake_cuda_work(last.stream, 3 * kNsPerMs);
        batch(last, 0, &backwards, k + 1 < kBatches ? &forwards : nullptr);
      }
      REQUIRE(last.marks->end_iteration(last.stream).ok());
      fake_cuda_synchronize(last.stream);
    }
  });
  for (int i = 0; i < kIterations; ++i) {
    fake_cuda_work(first.stream, kNsPerMs);
    batch(first, 1, &forwards, nullptr);
    for (int k = 0; k < kBatches; ++k) {
      if (k + 1 < kBatches) fake_cuda_work(first.stream, kNsPerMs);
      batch(first, 1, k + 1 < kBatches ? &forwards : nullptr, &backwards);
    }
    REQUIRE(first.marks->end_iteration(first.stream).ok());
    fake_cuda_synchronize(first.stream);
  }
  other.join();
  stop = true;
  CHECK(backwards.received == kIterations * kBatches);
  CHECK(first.marks->counters().broken + last.marks->counters().broken == 0);
  CHECK(first.marks->counters().stream > 0);
}

TEST_CASE("messages are held for again once their counters have begun anew") {
  const TempDir dir;
  constexpr auto kRing = StreamMarks::kRing;
  SECTION("up to the quiet stretch") {
    const uint64_t counted = kRing.period() - kRing.quiet - 2;
    Rank a(dir.path(), 0, 2, counted), b(dir.path(), 1, 2, counted);
    a.send(1);
    fake_cuda_synchronize(a.stream);
    CHECK(b.batch({}, {0}) == Held::kPlain);  // it is there
    CHECK(b.batch({}, {0}) == Held::kStream);
    CHECK(b.batch({}, {0}) == Held::kPlain);  // quiet
    a.send(1);
    fake_cuda_synchronize(b.stream);
  }
  SECTION("across the beginning") {
    const uint64_t counted = kRing.period() - 3;
    Rank a(dir.path(), 0, 2, counted), b(dir.path(), 1, 2, counted);
    a.send(1);
    fake_cuda_synchronize(a.stream);
    CHECK(b.sent->counter_from(0) == FREERIDE_POISON - 3);
    for (int i = 0; i < 5; ++i) CHECK(b.batch({}, {0}) == Held::kPlain);  // quiet; then a is before the beginning
    for (int i = 0; i < 4; ++i) a.send(1);
    fake_cuda_synchronize(a.stream);
    CHECK(b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 2);
    CHECK(b.batch({}, {0}) == Held::kStream);
    std::atomic<bool> received{false};
    b.then([&] { received = true; });
    REQUIRE(eventually([&] { return b.word() == FREERIDE_STATE(0, 6); }));
    CHECK_FALSE(received);
    a.send(1);
    CHECK(eventually([&] { return received.load(); }));
    a.sent->release(FREERIDE_RANK_DISABLED);
    a.send(1);
    a.marks->rejoin();
    CHECK(b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 4);
    CHECK(a.marks->counters().broken + b.marks->counters().broken == 0);
  }
}

TEST_CASE("collectives are held for again once their counters have begun anew, after two million iterations") {
  const TempDir dir;
  constexpr uint64_t kBefore = 3;  // iterations before the beginning
  const uint64_t counted = StreamMarks::kRing.period() - kBefore * StreamMarks::kMostMeetings;
  Rank a(dir.path(), 0, 2, counted), b(dir.path(), 1, 2, counted);
  int held = 0;
  for (uint64_t i = 0; i < 2 * kBefore; ++i) {
    b.meet({0}, {});
    fake_cuda_synchronize(b.stream);
    CHECK(a.meet({1}, {1}) == Held::kPlain);  // b has come to it
    const bool holds = a.meet({1}, {1}) != Held::kPlain;
    held += holds;
    CHECK(holds == (i >= kBefore));
    std::atomic<bool> came{false}, early{false};
    a.then([&] { early = holds && !came; });
    b.then([&] { came = true; });
    b.meet({0}, {});
    fake_cuda_synchronize(a.stream);
    fake_cuda_synchronize(b.stream);  // it writes to `came`, whether a has waited for it or not
    CHECK_FALSE(early);
    REQUIRE(a.marks->end_iteration(a.stream).ok());
    REQUIRE(b.marks->end_iteration(b.stream).ok());
  }
  CHECK(held == kBefore);
  CHECK(a.marks->counters().broken == 0);
  CHECK(pages::load_acquire(a.page->page().hook_state) != FREERIDE_HOOK_DISABLED);
}

TEST_CASE("early holds that are long past are not taken for held ones when counters have begun anew") {
  const TempDir dir;
  const uint64_t counted = StreamMarks::kRing.period() - StreamMarks::kRing.quiet - 1;
  Rank a(dir.path(), 0, 2, counted - 1), b(dir.path(), 1, 2, counted - 1);
  void* apart = fake_cuda_stream();
  a.send(1);
  fake_cuda_synchronize(a.stream);
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  const uint64_t early = b.post_early(apart, {0});
  REQUIRE(b.marks->watch(0) == false);
  a.send(1);
  fake_cuda_synchronize(apart);
  fake_cuda_synchronize(a.stream);
  b.wait(early);
  b.helper->stop();
  b.sent->page().sent[0][1] = FREERIDE_SENT_FIRST + 2;  // a million messages later
  b.marks->watch(0);
  CHECK_FALSE(b.marks->watch(2 * StreamMarks::kLongestEarlyNs));
  CHECK(b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 2);
  fake_cuda_destroy(apart);
}

TEST_CASE("a batch whose peer needs its send before it can produce is held for a bounded time, twice") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  // b computes what a waits for from what a sends in the same batch: without the bound neither would ever go on.
  std::atomic<int> to_b{0}, to_a{0};
  std::atomic<bool> stop{false};
  b.send(0);
  REQUIRE(eventually([&] { return a.sent->counter_from(1) > FREERIDE_SENT_FIRST; }));
  REQUIRE(a.batch({}, {1}) == Held::kPlain);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(a.marks->end_iteration(a.stream).ok());
    const Held held = a.batch({1}, {1});
    CHECK(held == (i < 2 ? Held::kStream : Held::kPlain));
    a.then([&, i] {
      to_b = i + 1;
      while (!stop && to_a < i + 1) std::this_thread::yield();
    });
    b.batch({}, {0}, Hold::kNever);
    b.then([&, i] {
      while (!stop && to_b < i + 1) std::this_thread::yield();
    });
    b.then([&, i] { to_a = i + 1; });
    b.send(0);
    fake_cuda_synchronize(a.stream);
    fake_cuda_synchronize(b.stream);
  }
  stop = true;
  CHECK(a.marks->counters().broken == 2);
}

TEST_CASE("a rank that switches off or detaches lets its own stream go, also when its peers never send") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  void* apart = fake_cuda_stream();
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.post_early(apart, {0}) != 0);
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  SECTION("at once, by whoever switches off") {
    b.helper->stop();
    b.page->switch_off(FREERIDE_HOOK_DISABLED);
    b.marks->let_go();
  }
  SECTION("again by the helper, should the counter be set back") {
    b.page->switch_off(FREERIDE_HOOK_DISABLED);
  }
  fake_cuda_synchronize(b.stream);  // hangs where nobody lets go
  fake_cuda_synchronize(apart);
  fake_cuda_destroy(apart);
}

TEST_CASE("a hold that was over is no hold again when its counter begins anew") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  const auto cuda = CudaDriver::load();
  REQUIRE(cuda.ok());
  void* const other = fake_cuda_stream();
  void* event = *cuda->new_event();
  auto& followers = b.marks->followers();
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  followers.recorded(event, b.stream);
  a.send(1);
  fake_cuda_synchronize(b.stream);
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  b.sent->page().sent[0][1] = FREERIDE_SENT_FIRST;  // as after a round of the ring, or a rank that has rejoined
  followers.recorded(event, b.stream);
  REQUIRE(followers.about_to_wait(other, event).ok());
  CHECK(followers.count() == 0);
  fake_cuda_synchronize(other);
  fake_cuda_destroy(other);
}

TEST_CASE("of two streams that wait in one iteration the first is held, and in a graph nothing is") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  void* const training = b.stream;
  b.stream = fake_cuda_stream();
  CHECK(b.batch({}, {0}) == Held::kPlain);
  a.send(1);
  a.send(1);
  fake_cuda_synchronize(training);
  fake_cuda_capture(b.stream, 1);
  CHECK_FALSE(b.marks->end_iteration(b.stream).ok());
  CHECK(b.wait(1) == Held::kPlain);
  fake_cuda_capture(b.stream, 0);
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  CHECK(b.batch({}, {0}) == Held::kStream);  // it is the one of this iteration
  a.send(1);
  fake_cuda_synchronize(b.stream);
  fake_cuda_destroy(training);
}

TEST_CASE("a rank that switches off holds nobody, also when its GPU still writes what it was told before") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  b.batch({}, {0});
  fake_cuda_work(a.stream, 100 * kNsPerMs);
  a.send(1);  // written after the release
  a.sent->release(FREERIDE_RANK_DISABLED);
  b.sent->page().sent[0][1] = FREERIDE_SENT_FIRST + 1;  // as if b had not seen the release when it posted
  b.sent->page().rank[0].status = FREERIDE_RANK_HOOKED;
  b.batch({}, {0});
  b.batch({}, {0});  // a message that never comes
  b.sent->page().rank[0].status = FREERIDE_RANK_DISABLED;
  fake_cuda_synchronize(b.stream);  // hangs where nobody releases again
  CHECK(b.word() == FREERIDE_STATE(0, 0));
}

TEST_CASE(
    "after a rank has rejoined, its neighbours hold receives from it again, and none that it has sent meanwhile") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  a.sent->release(FREERIDE_RANK_DISABLED);
  a.send(1);
  CHECK(b.batch({}, {0}) == Held::kPlain);
  a.send(1);
  a.marks->rejoin();
  REQUIRE(b.sent->is_hooked(0));
  CHECK(b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 3);
  CHECK(b.batch({}, {0}) == Held::kPlain);  // it is there
  std::atomic<bool> received{false};
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  b.then([&] { received = true; });
  REQUIRE(eventually([&] { return b.word() == FREERIDE_STATE(0, 4); }));
  CHECK_FALSE(received);
  a.send(1);
  CHECK(eventually([&] { return received.load(); }));
  a.sent->release(FREERIDE_RANK_DEAD);  // for good
  a.marks->rejoin();
  CHECK_FALSE(b.sent->is_hooked(0));
  CHECK(b.sent->counter_from(0) == FREERIDE_POISON);
}

TEST_CASE("a hold that lasts too long is ended, and after the second time not tried again") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  CHECK(b.batch({}, {0}) == Held::kPlain);
  for (int i = 0; i < 3; ++i) {  // messages that never come
    REQUIRE(b.marks->end_iteration(b.stream).ok());
    CHECK(b.batch({}, {0}) == (i < 2 ? Held::kStream : Held::kPlain));
    fake_cuda_synchronize(b.stream);
  }
  CHECK(b.marks->counters().broken == 2);
  CHECK(pages::load_acquire(a.sent->page().rank[0].status) == FREERIDE_RANK_HOOKED);
}

TEST_CASE("a stuck hold is ended also when the host is two iterations ahead of its GPU") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  CHECK(b.batch({}, {0}) == Held::kPlain);
  std::atomic<int> done{0};
  for (int i = 0; i < 3; ++i) {  // the same wait of each iteration, for messages that never come
    REQUIRE(b.marks->end_iteration(b.stream).ok());
    CHECK(b.batch({}, {0}) == Held::kStream);
    b.then([&] { ++done; });
  }
  CHECK(eventually([&] { return done == 3; }));
  CHECK(b.marks->counters().broken == 3);
}

TEST_CASE("nothing is held that the helper could not find, with a thousand holds posted that the GPU has not come to") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  CHECK(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  std::atomic<bool> go{false};
  void* apart = nullptr;
  const auto post = [&] { return b.batch({}, {0}) == Held::kStream; };
  const auto count_held = [&] { return b.marks->counters().stream.load(); };
  SECTION("where they are waited for at once") {
    b.then([&] {
      while (!go) std::this_thread::yield();
    });
    for (int i = 0; i < 1030; ++i) {
      CHECK(post() == (i < 1024));
      if (i % 300 == 299) REQUIRE(b.marks->end_iteration(b.stream).ok());
    }
    for (int i = 0; i < 1030; ++i) a.send(1);
    go = true;
    fake_cuda_synchronize(a.stream);
    REQUIRE(b.marks->end_iteration(b.stream).ok());
    fake_cuda_synchronize(b.stream);
    CHECK(count_held() == 1024);
    CHECK(post());  // again
    a.send(1);
    fake_cuda_synchronize(b.stream);
  }
  SECTION("where they are posted early") {
    apart = fake_cuda_stream();
    for (int i = 0; i < 1025; ++i) b.post_early(apart, {0});
    std::atomic<bool> posted{false};
    for (int i = 0; i < 1024; ++i) a.send(1);
    fake_cuda_run(
        apart, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &posted);
    CHECK(eventually([&] { return posted.load(); }));  // without the last message: that one is not held
    fake_cuda_destroy(apart);
  }
  CHECK(b.marks->counters().broken == 0);
}

TEST_CASE("a receive held apart that blocks the training is let go also after a long time without marks") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  b.helper->stop();  // this test is the helper
  void* apart = fake_cuda_stream();
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  REQUIRE(b.marks->end_iteration(b.stream).ok());
  fake_cuda_synchronize(b.stream);
  int64_t now_ns = SteadyClock::now();
  b.marks->watch(now_ns);
  now_ns += 2 * StreamMarks::kLongestEarlyNs;  // an evaluation
  CHECK_FALSE(b.marks->watch(now_ns));
  b.post_early(apart, {0});
  CHECK_FALSE(b.marks->watch(now_ns + kNsPerMs));
  CHECK(b.marks->watch(now_ns + StreamMarks::kLongestEarlyNs + kNsPerMs));
  fake_cuda_synchronize(apart);
  fake_cuda_destroy(apart);
}

TEST_CASE("a hold that was ended ends, also when the counter is set back by what the sender's GPU had been told") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  b.helper->stop();  // this test is the helper
  a.send(1);
  REQUIRE(eventually([&] { return b.sent->counter_from(0) > FREERIDE_SENT_FIRST; }));
  REQUIRE(b.batch({}, {0}) == Held::kPlain);
  auto& counter = b.sent->page().sent[0][1];
  REQUIRE(b.batch({}, {0}) == Held::kStream);
  REQUIRE(eventually([&] { return b.word() == FREERIDE_STATE(0, 2); }));
  const int64_t now_ns = SteadyClock::now();
  b.marks->watch(now_ns);
  CHECK(b.marks->watch(now_ns + 2 * kNsPerSec));
  fake_cuda_synchronize(b.stream);
  // As if the GPU had not looked in between.
  pages::store_release(counter, FREERIDE_SENT_FIRST + 1);
  pages::store_release(b.page->page().state_word, FREERIDE_STATE(0, 2));
  CHECK_FALSE(b.marks->watch(now_ns + 3 * kNsPerSec));  // said once
  CHECK(pages::load_acquire(counter) == FREERIDE_SENT_FIRST + 2);
}

// Two stages that exchange `messages` in each iteration, a first, and come to a collective in it. Where a rank's
// optimizer makes its step is the test's to say.
struct TwoStages {
  explicit TwoStages(const std::string& folder) : a(folder, 0), b(folder, 1) {}
  void step(Rank& rank) { REQUIRE(rank.marks->end_iteration(rank.stream).ok()); }
  void post(Rank& rank, std::vector<uint32_t> to, std::vector<uint32_t> from) {
    const auto named = [](std::vector<uint32_t> ranks) {
      for (uint32_t& one : ranks) one += 100;
      return ranks;
    };
    if (rank.marks->is_behind(named(to), named(from))) step(rank);
    rank.batch(to, from, Hold::kNever);
  }
  void message(Rank& from, uint32_t source, Rank& to, uint32_t destination) {
    post(from, {destination}, {});
    post(to, {}, {source});
  }
  void messages(int count) {
    for (int i = 0; i < count; ++i) {
      message(a, 0, b, 1);
      message(b, 1, a, 0);
    }
  }
  void collective() {
    a.meet({1}, {1});
    b.meet({0}, {0});
    fake_cuda_synchronize(a.stream);
    fake_cuda_synchronize(b.stream);
  }
  uint64_t iterations(const Rank& rank) const { return rank.marks->iteration(); }
  Rank a, b;
};

TEST_CASE("a rank that skips an optimizer's step counts the iterations that its neighbour counts") {
  const TempDir dir;
  TwoStages stages(dir.path());
  auto& [a, b] = stages;
  for (int i = 0; i < 8; ++i) {
    stages.messages(3);
    CHECK(stages.iterations(a) == uint64_t(i));
    CHECK(stages.iterations(b) == uint64_t(i));
    stages.collective();
    stages.step(a);
    if (i != 3 && i != 6) stages.step(b);
  }
  CHECK(stages.iterations(b) == 8);
  CHECK(a.marks->counters().broken + b.marks->counters().broken == 0);
}

TEST_CASE("a rank without trainable parameters counts the iterations that its neighbour counts") {
  const TempDir dir;
  TwoStages stages(dir.path());
  auto& [a, b] = stages;
  for (int i = 0; i < 8; ++i) {
    if (i == 4) stages.messages(2);  // an evaluation, or a smaller batch without a step
    stages.messages(3);
    CHECK(stages.iterations(a) == uint64_t(i));
    CHECK(stages.iterations(b) == uint64_t(i));
    stages.collective();
    stages.step(a);
  }
  CHECK(a.marks->counters().broken + b.marks->counters().broken == 0);
}

TEST_CASE("a rank that has missed iterations counts as its neighbour after its own next step") {
  const TempDir dir;
  TwoStages stages(dir.path());
  auto& [a, b] = stages;
  stages.messages(3);
  for (int i = 0; i < 3; ++i) stages.step(a);  // steps without messages between
  stages.step(b);
  CHECK(stages.iterations(b) == 3);
  stages.collective();
  CHECK(b.marks->counters().broken == 0);
}

TEST_CASE("a rank that is told how many iterations have ended goes on from there, and so does its neighbour") {
  const TempDir dir;
  TwoStages stages(dir.path());
  stages.messages(2);
  REQUIRE(stages.a.marks->end_iteration(stages.a.stream, 7).ok());
  stages.messages(2);
  CHECK(stages.iterations(stages.a) == 7);
  CHECK(stages.iterations(stages.b) == 7);
  REQUIRE(stages.a.marks->end_iteration(stages.a.stream, 7).ok());
  CHECK(stages.iterations(stages.a) == 8);
  stages.collective();
}

TEST_CASE("ranks that make their steps at other messages do not drive each other on") {
  const TempDir dir;
  TwoStages stages(dir.path());
  auto& [a, b] = stages;
  stages.messages(3);
  stages.step(a);
  for (int i = 1; i < 10; ++i) {
    stages.message(a, 0, b, 1);
    stages.step(b);  // always after the next iteration's first message
    stages.message(b, 1, a, 0);
    stages.messages(2);
    stages.step(a);
  }
  CHECK(stages.iterations(a) <= 11);
  CHECK(stages.iterations(b) <= 11);
}

TEST_CASE("messages into a graph, or of a second thread, switch off or are counted only") {
  const TempDir dir;
  Rank a(dir.path(), 0), b(dir.path(), 1);
  a.send(1);
  std::thread([&] { a.send(1); }).join();
  REQUIRE(eventually([&] { return b.sent->counter_from(0) == FREERIDE_SENT_FIRST + 2; }));
  b.batch({}, {0});
  std::thread([&] { CHECK(b.batch({}, {0}) == Held::kPlain); }).join();
  std::thread([&] { CHECK(b.batch({}, {0}) == Held::kPlain); }).join();
  fake_cuda_capture(b.stream, 1);
  const std::array<uint32_t, 1> from{100};
  CHECK_FALSE(b.marks->batch(b.stream, {}, from, Hold::kNow).ok());
}

TEST_CASE("after an error of CUDA's the hook is off, and its row is released") {
  const TempDir dir;
  setenv("FREERIDE_SHM_DIR", dir.path().c_str(), 1);
  freeride_hook_config config{};
  config.struct_size = sizeof(config);
  config.flags = FREERIDE_HOOK_CUDA;
  config.job = "job";
  config.run_dir = dir.path().c_str();
  config.stages = config.replicas = 1;
  config.rank = 100;
  freeride_hook* hook = freeride_hook_attach(&config);
  REQUIRE(hook != nullptr);
  CHECK(std::string(freeride_hook_page(hook)->device) == "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
  Rank peer(dir.path(), 1);
  void* stream = fake_cuda_stream();
  const uint32_t other = 101;
  CHECK(freeride_hook_stream_batch(hook, stream, &other, 1, nullptr, 0, 0) == FREERIDE_HELD_PLAIN);
  REQUIRE(eventually([&] { return peer.sent->counter_from(0) == FREERIDE_SENT_FIRST + 1; }));
  peer.send(0);
  peer.send(0);
  fake_cuda_synchronize(peer.stream);
  for (int i = 0; i < 2; ++i) freeride_hook_stream_batch(hook, stream, nullptr, 0, &other, 1, 1);
  SECTION("at a send") {
    fake_cuda_fail_after(0);
    freeride_hook_stream_batch(hook, stream, &other, 1, nullptr, 0, 0);
  }
  SECTION("between a mark and its wait") {
    fake_cuda_fail_after(1);
    CHECK(freeride_hook_stream_batch(hook, stream, nullptr, 0, &other, 1, 1) == FREERIDE_HELD_PLAIN);
  }
  SECTION("at the end of a mark") {
    fake_cuda_fail_after(2);
    freeride_hook_stream_batch(hook, stream, nullptr, 0, &other, 1, 1);
  }
  fake_cuda_fail_after(-1);
  CHECK(freeride_hook_state(hook) == FREERIDE_HOOK_DISABLED);
  CHECK(peer.sent->counter_from(0) == FREERIDE_POISON);
  CHECK(freeride_hook_enable(hook) == 0);
  CHECK(freeride_hook_stream_batch(hook, stream, &other, 1, &other, 1, 1) == FREERIDE_HELD_PLAIN);
  freeride_hook_stream_iteration_end(hook, stream);
  CHECK(peer.batch({}, {0}) == Held::kPlain);
  fake_cuda_destroy(stream);
  freeride_hook_detach(hook);
}

TEST_CASE("a phase of another thread than the one that posts messages ends no iteration") {
  const TempDir dir;
  Rank rank(dir.path(), 0);
  const auto by_phase = [&] { REQUIRE(rank.marks->end_iteration_by_phase(rank.stream).ok()); };
  std::thread(by_phase).join();  // no message so far
  rank.batch({}, {1});
  std::thread(by_phase).join();
  fake_cuda_synchronize(rank.stream);
  CHECK(FREERIDE_STATE_ITERATION(pages::load_acquire(rank.page->page().state_word)) == 1);
  by_phase();
  fake_cuda_synchronize(rank.stream);
  CHECK(FREERIDE_STATE_ITERATION(pages::load_acquire(rank.page->page().state_word)) == 2);
}

}  // namespace freeride::hooks
