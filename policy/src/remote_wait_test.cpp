#include "freeride/policy/remote_wait.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace freeride::policy;

namespace {

constexpr int64_t kMs = 1'000'000;

// Three waits for rank 1: a long one that sends as well, one that is transfer alone, and a long one.
std::vector<RemoteSample> iteration(int64_t more_ns = 0) {
  return {{true, 1, 100, true, 40 * kMs + more_ns}, {true, 1, 100, true, 8 * kMs}, {true, 1, 100, false, 30 * kMs}};
}

}  // namespace

TEST_CASE("remote waits: arms follow from the number, all plain at first and one in twenty-four later", "[remote]") {
  for (uint64_t i = 0; i < ArmPlan::kFirstPlain; ++i) CHECK(arm_of(i, 0) == Arm::kPlain);
  size_t plain = 0, held = 0;
  for (uint64_t i = 480; i < 960; ++i) {
    plain += arm_of(i, 0) == Arm::kPlain ? 1 : 0;
    held += arm_of(i, 0) == Arm::kHeld ? 1 : 0;
    CHECK(arm_of(i, 960) == Arm::kPlain);
  }
  CHECK(plain == 20);
  CHECK(held == 20);
  CHECK(plain * 50 >= 480);  // at least one in fifty
  CHECK_FALSE(is_timed(480, 0));
  CHECK(is_timed(481, 0));
  CHECK_FALSE(is_timed(482, 0));
  CHECK(is_timed(483, 0));
  CHECK_FALSE(is_timed(484, 0));
  CHECK(is_timed(485, 0));
  CHECK_FALSE(is_timed(481, 490));
}

TEST_CASE("remote waits: the ceiling is the receive's end less the shortest transfer and a millisecond", "[remote]") {
  RemoteWaits waits(16);
  for (uint32_t i = 0; i < RemoteWaits::kLeastSamples; ++i) {
    CHECK(waits.ceiling_ns(1, 1, 100, true) == 0);
    waits.add_iteration(iteration());
  }
  // Nothing below the lowest seen, by the learner's margin of 2 %.
  CHECK(waits.ceiling_ns(1, 1, 100, true) <= 31 * kMs);
  CHECK(waits.ceiling_ns(1, 1, 100, true) >= 30 * kMs);
  // Where hints come, it is held until the data exists but for the time that posting takes.
  CHECK(waits.ceiling_ns(1, 1, 100, true, true) ==
        waits.ceiling_ns(1, 1, 100, true) + RemoteWaits::kLeadNs - RemoteWaits::kHintedLeadNs);
  CHECK(waits.ceiling_ns(2, 1, 100, true) == 0);  // the data was there: transfer only
  CHECK(waits.ceiling_ns(3, 1, 100, false) >= 20 * kMs);
  CHECK(waits.ceiling_ns(3, 1, 100, false) <= 21 * kMs);
  CHECK(waits.holdable_ns() == RemoteWaits::kLeastSamples * 54 * kMs);
  // Another wait in its place is not held.
  CHECK(waits.ceiling_ns(1, 2, 100, true) == 0);
  CHECK(waits.ceiling_ns(1, 1, 101, true) == 0);
  CHECK(waits.ceiling_ns(1, 1, 100, false) == 0);
  CHECK(waits.ceiling_ns(0, 1, 100, true) == 0);
  CHECK(waits.ceiling_ns(4, 1, 100, true) == 0);
}

TEST_CASE("remote waits: one that never was short is not held, and a longer sample does not lengthen a hold",
          "[remote]") {
  RemoteWaits waits(16);
  const std::vector<RemoteSample> only{{true, 1, 100, false, 30 * kMs}};
  for (int i = 0; i < 12; ++i) waits.add_iteration(only);
  CHECK(waits.ceiling_ns(1, 1, 100, false) == 0);
  RemoteWaits others(16);
  for (int i = 0; i < 12; ++i) others.add_iteration(iteration());
  const int64_t before = others.ceiling_ns(1, 1, 100, true);
  for (int i = 0; i < 2; ++i) others.add_iteration(iteration(500 * kMs));  // stalls
  CHECK(others.ceiling_ns(1, 1, 100, true) <= before + kMs);
}

TEST_CASE("remote waits: another schedule is learned anew", "[remote]") {
  RemoteWaits waits(16);
  for (int i = 0; i < 12; ++i) waits.add_iteration(iteration());
  auto other = iteration();
  other[0].bytes = 200;
  CHECK(waits.add_iteration(other));
  CHECK(waits.ceiling_ns(3, 1, 100, false) == 0);
  other.pop_back();
  CHECK(waits.add_iteration(other));
  CHECK(waits.add_iteration({}));
  CHECK(waits.ceiling_ns(1, 1, 200, true) == 0);
}

TEST_CASE("remote waits: any numbers are taken, and kinds are bounded", "[remote]") {
  RemoteWaits waits(4);
  for (uint64_t i = 0; i < 1000; ++i) {
    const int64_t ns = i % 3 == 0 ? -1 : i % 3 == 1 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(i);
    const std::vector<RemoteSample> odd(6, {true, static_cast<uint32_t>(i), i, i % 2 == 0, ns});
    waits.add_iteration(odd);
    for (size_t wait = 0; wait < 8; ++wait) {
      CHECK(waits.ceiling_ns(wait, static_cast<uint32_t>(i), i, i % 2 == 0) >= 0);
    }
  }
}

TEST_CASE(
    "remote wait: at most one message each way with one rank is held, and sends only where the peer waits for them") {
  CHECK(may_hold_remotely({1, 0, true, true, false}));
  CHECK(may_hold_remotely({1, 1, true, true, true}));
  CHECK_FALSE(may_hold_remotely({1, 1, true, true, false}));
  CHECK_FALSE(may_hold_remotely({2, 0, true, true, false}));
  CHECK_FALSE(may_hold_remotely({1, 2, true, true, true}));
  CHECK_FALSE(may_hold_remotely({1, 0, false, true, false}));
  CHECK_FALSE(may_hold_remotely({1, 0, true, false, false}));
  CHECK_FALSE(may_hold_remotely({0, 1, true, true, true}));
}
