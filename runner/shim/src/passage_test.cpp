#include "passage.hpp"

#include <catch2/catch.hpp>

#include "freeride/base/clock.hpp"

namespace freeride::shim {
namespace {

const Limits kLimits;

pages::Lease lease_of(int64_t opened_ns, int64_t deadline_ns) {
  pages::Lease lease;
  lease.order = FREERIDE_ORDER_RUN;
  lease.kind = FREERIDE_LEASE_BUBBLE;
  lease.lease_id = 3;
  lease.opened_ns = static_cast<uint64_t>(opened_ns);
  lease.deadline_ns = static_cast<uint64_t>(deadline_ns);
  return lease;
}

Room room(int64_t left_ns, int64_t length_ns = 50 * kNsPerMs, uint64_t id = 1) {
  return {true, id, left_ns, length_ns};
}

}  // namespace

TEST_CASE("a lease is open by its kind, order, deadline and orders") {
  const auto lease = lease_of(100, 200);
  CHECK(room_of(lease, 0, 150, false).open);
  CHECK(room_of(lease, 0, 150, false).left_ns == 50);
  CHECK(room_of(lease, 0, 150, false).length_ns == 100);
  CHECK_FALSE(room_of(lease, 0, 200, false).open);
  CHECK(room_of(lease, 180, 150, false).left_ns == 30);
  CHECK_FALSE(room_of(lease, 150, 150, false).open);
  CHECK_FALSE(room_of(pages::Lease{}, 0, 150, false).open);
  for (const uint32_t kind : {0u, 1u, 2u, 3u, 4u, 5u}) {
    for (const uint32_t order : {0u, 1u, 2u}) {
      auto one = lease;
      one.kind = kind;
      one.order = order;
      const bool steps = kind == FREERIDE_LEASE_BUBBLE || kind == FREERIDE_LEASE_IDLE;
      const bool whatever = kind == FREERIDE_LEASE_PROFILE;
      INFO(kind << " " << order);
      CHECK(room_of(one, 0, 150, false).open == (whatever || (steps && order != FREERIDE_ORDER_PAUSE)));
      // A plugin fills the GPU's memory, copies its state from there, and gives things back.
      const bool own = kind == FREERIDE_LEASE_INIT || kind == FREERIDE_LEASE_SAVE || order == FREERIDE_ORDER_STOP;
      CHECK(room_of(one, 0, 150, true).open == (own || room_of(one, 0, 150, false).open));
    }
  }
  auto stopped = lease;
  stopped.order = FREERIDE_ORDER_STOP;
  stopped.deadline_ns = stopped.lease_id = 0;
  CHECK_FALSE(room_of(stopped, 0, 150, false).open);
  CHECK(room_of(stopped, 0, 150, true).left_ns == kNsPerSec);
  auto spoilt = lease;  // a page can hold any bytes
  spoilt.opened_ns = UINT64_MAX;
  spoilt.deadline_ns = UINT64_MAX;
  CHECK(room_of(spoilt, 0, 150, false).length_ns >= room_of(spoilt, 0, 150, false).left_ns);
}

TEST_CASE("what is known passes while the queue is below its bound and the lease is long enough") {
  const Wish wish{100 * kNsPerUs, false};
  CHECK(judge({}, 0, wish, true, kLimits) == Passage::kClosed);
  CHECK(judge(room(10 * kNsPerMs), 0, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(10 * kNsPerMs), 900 * kNsPerUs, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(4 * kNsPerMs), 901 * kNsPerUs, wish, false, kLimits) == Passage::kFull);
  // While the lease has four times as much left, the bound is larger; not for what is not known.
  CHECK(judge(room(5 * kNsPerMs), 901 * kNsPerUs, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(50 * kNsPerMs), 1900 * kNsPerUs, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(50 * kNsPerMs), 1901 * kNsPerUs, wish, false, kLimits) == Passage::kFull);
  CHECK(judge(room(50 * kNsPerMs), 100 * kNsPerUs, {}, false, kLimits) == Passage::kFull);
  // What is queued and it must be done by the deadline.
  CHECK(judge(room(kNsPerMs), 800 * kNsPerUs, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(900 * kNsPerUs), 800 * kNsPerUs, wish, false, kLimits) == Passage::kFull);
  CHECK(judge(room(100 * kNsPerUs), 0, wish, false, kLimits) == Passage::kTooShort);
  CHECK(judge(room(100 * kNsPerUs), 0, wish, true, kLimits) == Passage::kTry);
}

TEST_CASE("what is longer than the bound passes alone") {
  const Wish wish{5 * kNsPerMs, false};
  CHECK(judge(room(10 * kNsPerMs), 0, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(10 * kNsPerMs), kNsPerUs, wish, false, kLimits) == Passage::kFull);
  CHECK(judge(room(4 * kNsPerMs), 0, wish, false, kLimits) == Passage::kTooShort);
}

TEST_CASE("what is not known passes alone, not at a lease's end, and is never a try") {
  const Wish wish{};
  CHECK(judge(room(10 * kNsPerMs), 0, wish, false, kLimits) == Passage::kPass);
  CHECK(judge(room(10 * kNsPerMs), kNsPerUs, wish, false, kLimits) == Passage::kFull);
  CHECK(judge(room(4 * kNsPerMs), 0, wish, true, kLimits) == Passage::kTooShort);
  CHECK(judge(room(3 * kNsPerMs, 4 * kNsPerMs), 0, wish, false, kLimits) == Passage::kPass);
  CHECK(weight_of(wish, kLimits) == kLimits.bound_ns);
}

TEST_CASE("signals weigh nearly nothing, and need a lease") {
  const Wish wish{0, true};
  CHECK(judge({}, 0, wish, false, kLimits) == Passage::kClosed);
  CHECK(judge(room(kNsPerMs), 500 * kNsPerUs, wish, false, kLimits) == Passage::kPass);
  CHECK(weight_of(wish, kLimits) == kNsPerUs);
}

TEST_CASE("what no lease is long enough for is tried after some leases, and then ever more seldom") {
  Trials trials;
  uint64_t id = 0;
  const auto leases_until_try = [&](int64_t expected_ns) {
    for (int count = 0;; ++count) {
      const Room now = room(50 * kNsPerMs, 50 * kNsPerMs, ++id);
      CHECK(trials.sees(now));
      CHECK_FALSE(trials.sees(now));
      if (trials.due(now, expected_ns)) {
        CHECK_FALSE(trials.due(room(40 * kNsPerMs, 50 * kNsPerMs, id), expected_ns));  // not in its middle
        trials.tried();
        return count;
      }
      trials.too_short(id);
      trials.too_short(id);
    }
  };
  CHECK(leases_until_try(70 * kNsPerMs) == 4);
  CHECK(leases_until_try(70 * kNsPerMs) == 8);
  CHECK(leases_until_try(70 * kNsPerMs) == 16);
  for (int i = 0; i < 5; ++i) leases_until_try(70 * kNsPerMs);
  CHECK(leases_until_try(70 * kNsPerMs) == 128);
  CHECK(trials.longest_ns() == 50 * kNsPerMs);
}

TEST_CASE("what one of the recent leases was long enough for waits for such a one") {
  Trials trials;
  trials.sees(room(80 * kNsPerMs, 80 * kNsPerMs, 1));
  for (uint64_t id = 2; id < 30; ++id) {
    trials.sees(room(50 * kNsPerMs, 50 * kNsPerMs, id));
    trials.too_short(id);
    CHECK_FALSE(trials.due(room(50 * kNsPerMs, 50 * kNsPerMs, id), 70 * kNsPerMs));
  }
  CHECK(trials.longest_ns() == 80 * kNsPerMs);
  for (uint64_t id = 30; id < 40; ++id) trials.sees(room(50 * kNsPerMs, 50 * kNsPerMs, id));
  CHECK(trials.longest_ns() == 50 * kNsPerMs);
  CHECK(trials.due(room(50 * kNsPerMs, 50 * kNsPerMs, 40), 70 * kNsPerMs));
}

}  // namespace freeride::shim
