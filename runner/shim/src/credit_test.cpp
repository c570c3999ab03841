#include "credit.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "gate.hpp"

namespace freeride::shim {
namespace {

class NoEvents final : public Events {
 public:
  void* context_of(void*) override { return nullptr; }
  void* make(void*, bool) override { return nullptr; }
  bool record(void*, void*, void*) override { return false; }
  State query(void*) override { return State::kDone; }
  int64_t elapsed_ns(void*, void*) override { return -1; }
};

// A gate at which a lease is open. Its clock goes as the processor's counter does, a tick a nanosecond, at times apart.
struct Fixture {
  freeride_lease_page lease{};
  FakeClock clock;
  NoEvents events;
  Limits limits;
  InFlight queue{events};
  ShimPage page;
  Gate gate{lease, clock, queue, page, limits, [](const Cost*) { return std::string(); }};
  Credit credit;

  Fixture() {
    // The counter's rate has to be known, which takes longer where the test itself is stopped now and then.
    const int64_t apart_ns = clock.now_ns() - SteadyClock::now();
    open(kNsPerSec);
    for (int tries = 0; tries < 1000 && !gives(kNsPerUs); ++tries) {
      const int64_t until = SteadyClock::now() + 11 * kNsPerMs;
      while (SteadyClock::now() < until) {
      }
      clock.set(SteadyClock::now() + apart_ns);
      open(kNsPerSec);
    }
  }
  void open(int64_t lease_ns) {
    lease.sequence += 2;
    lease.order = FREERIDE_ORDER_RUN;
    lease.kind = FREERIDE_LEASE_BUBBLE;
    lease.lease_id += 1;
    lease.opened_ns = static_cast<uint64_t>(clock.now_ns());
    lease.deadline_ns = static_cast<uint64_t>(clock.now_ns() + lease_ns);
  }
  // What it put into the queue is done at once.
  void pass(int64_t expected_ns) {
    credit.left_ns = 0;
    gate.pass({expected_ns, false, true}, nullptr, credit);
    queue.cancel(queue.queued_ns());
  }
  bool gives(int64_t expected_ns) {
    pass(expected_ns);
    return credit.left_ns > 0;
  }
};

TEST_CASE("short submissions are given credit, longer ones and unknown ones are not") {
  if (!ticks_are_steady()) return;
  Fixture f;
  CHECK(f.gives(2 * kNsPerUs));
  CHECK(f.gives(f.limits.short_ns));
  CHECK_FALSE(f.gives(f.limits.short_ns + 1));
  CHECK_FALSE(f.gives(0));
  f.gate.pass({2 * kNsPerUs}, nullptr, f.credit);
  CHECK(f.credit.left_ns == 0);
}

TEST_CASE("a credit is a quarter of the bound that is in force") {
  if (!ticks_are_steady()) return;
  Fixture f;
  REQUIRE(f.gives(2 * kNsPerUs));
  CHECK(f.credit.left_ns == f.limits.early_bound_ns / 4);
  f.open(f.limits.bound_ns);
  REQUIRE(f.gives(f.limits.short_ns));
  CHECK(f.credit.left_ns == f.limits.early_bound_ns / 4);
  // More than a quarter of what is left of the lease is queued.
  REQUIRE(f.queue.reserve(0, f.limits.bound_ns / 4));
  f.credit.left_ns = 0;
  f.gate.pass({f.limits.short_ns, false, true}, nullptr, f.credit);
  CHECK(f.credit.left_ns == f.limits.bound_ns / 4);
}

TEST_CASE("after a lease's end by the counter a thread spends no more than lies between two looks") {
  if (!ticks_are_steady()) return;
  Fixture f;
  REQUIRE(f.gives(kNsPerUs));
  f.credit.begin_ticks = ticks() - f.credit.span_ticks;
  int64_t spent_ns = 0;
  while (f.credit.spend(kNsPerUs, f.limits.short_ns)) spent_ns += kNsPerUs;
  CHECK(spent_ns == f.limits.short_ns);
  REQUIRE(f.gives(f.limits.short_ns));
  f.credit.span_ticks = UINT32_MAX;  // however long the test is stopped
  REQUIRE(f.credit.spend(f.limits.short_ns, f.limits.short_ns));
  f.credit.begin_ticks = ticks() - f.credit.span_ticks;
  CHECK_FALSE(f.credit.spend(f.limits.short_ns, f.limits.short_ns));
}

TEST_CASE("credit counts as queued from when it is given") {
  if (!ticks_are_steady()) return;
  Fixture f;
  const int64_t weight_ns = f.gate.pass({2 * kNsPerUs, false, true}, nullptr, f.credit).weight_ns;
  REQUIRE(f.credit.left_ns > 0);
  CHECK(f.queue.queued_ns() == weight_ns + f.credit.left_ns);
  // Where the queue has no room for it, none is given.
  REQUIRE(f.queue.reserve(f.queue.queued_ns(), f.limits.early_bound_ns - f.queue.queued_ns() - 10 * kNsPerUs));
  f.gate.pass({2 * kNsPerUs, false, true}, nullptr, f.credit);
  CHECK(f.credit.left_ns == 0);
}

TEST_CASE("credit is spent until nothing is left of it") {
  if (!ticks_are_steady()) return;
  Fixture f;
  REQUIRE(f.gives(16 * kNsPerUs));
  f.credit.unseen_ns = 0;
  f.credit.span_ticks = UINT32_MAX;  // however long the test is stopped
  const int64_t given_ns = f.credit.left_ns;
  const uint64_t before = f.page.get(&freeride_shim_page::submissions);
  CHECK(f.credit.spend(16 * kNsPerUs, 0));
  CHECK(f.credit.spend(given_ns - 24 * kNsPerUs, 0));
  CHECK_FALSE(f.credit.spend(16 * kNsPerUs, 0));
  CHECK(f.credit.spend(8 * kNsPerUs, 0));
  CHECK_FALSE(f.credit.spend(1, 0));
  CHECK(f.page.get(&freeride_shim_page::submissions) == before + 3);
}

TEST_CASE("a lease that is closed, or another one, ends all credit at once") {
  if (!ticks_are_steady()) return;
  Fixture f;
  REQUIRE(f.gives(kNsPerUs));
  f.credit.span_ticks = UINT32_MAX;  // however long the test is stopped
  CHECK(f.credit.spend(kNsPerUs, 0));
  f.lease.sequence += 2;
  CHECK_FALSE(f.credit.spend(kNsPerUs, 0));
}

TEST_CASE("credit ends with the lease though nobody closes it") {
  if (!ticks_are_steady()) return;
  Fixture f;
  // Less than the span of any credit is left.
  f.open(f.limits.credit_span_ns / 5 * 4);
  REQUIRE(f.gives(kNsPerUs));
  f.credit.unseen_ns = 0;
  const int64_t until = SteadyClock::now() + f.limits.credit_span_ns;
  while (SteadyClock::now() < until) {
  }
  CHECK_FALSE(f.credit.spend(kNsPerUs, 0));
}

TEST_CASE("at a lease's end no credit is given") {
  if (!ticks_are_steady()) return;
  Fixture f;
  f.open(f.limits.margin_ns + kNsPerUs + f.limits.early_bound_ns / 4);
  CHECK_FALSE(f.gives(2 * kNsPerUs));
}

// A processor's counter and the clock, noted a time and some ticks later.
struct Counter {
  TickRate rate;
  int64_t now_ns = kNsPerSec;
  uint64_t count = 1000;
  // Ticks in a millisecond, as is known then.
  uint64_t after(int64_t ns, uint64_t ticks) {
    rate.note(now_ns += ns, count += ticks);
    return rate.in(kNsPerMs);
  }
};

TEST_CASE("before two windows agree about the counter's rate none is known") {
  Counter counter;
  CHECK(counter.rate.in(kNsPerMs) == 0);
  CHECK(counter.after(0, 0) == 0);
  CHECK(counter.after(9 * kNsPerMs, 18'000'000) == 0);
  CHECK(counter.after(kNsPerMs, 2'000'000) == 0);
  // Stopped between the counter and the clock.
  CHECK(counter.after(14 * kNsPerMs, 20'000'000) == 0);
  CHECK(counter.after(10 * kNsPerMs, 20'000'000) == 0);
  CHECK(counter.after(10 * kNsPerMs, 20'000'000) == 2'000'000);
}

TEST_CASE("the counter's rate is learned anew, as on another host") {
  Counter counter;
  counter.after(0, 0);
  counter.after(10 * kNsPerMs, 20'000'000);
  REQUIRE(counter.after(10 * kNsPerMs, 20'000'000) == 2'000'000);
  CHECK(counter.after(kNsPerSec, 3'000'000'000) == 0);
  CHECK(counter.after(10 * kNsPerMs, 30'000'000) == 3'000'000);
  // A counter that went back: nothing is known.
  counter.count = 0;
  CHECK(counter.after(kNsPerSec, 5) == 0);
}

TEST_CASE("what is before credit's begin by the counter is not on credit") {
  Credit credit;
  uint32_t sequence = 2;
  uint64_t counter = 0;
  credit.sequence_now = &sequence;
  credit.sequence = 2;
  credit.submissions = &counter;
  credit.left_ns = kNsPerMs;
  credit.begin_ticks = ticks() + (uint64_t{1} << 40);
  credit.span_ticks = UINT32_MAX;
  CHECK_FALSE(credit.spend(1, 0));
}

}  // namespace
}  // namespace freeride::shim
