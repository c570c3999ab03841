#include "freeride/policy/holdout.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace freeride::policy;

namespace {
HoldoutPlan plan_of(double share_pct, uint64_t block = 4, uint64_t from = 100) {
  HoldoutPlan plan;
  plan.job = "gpt";
  plan.seed = 7;
  plan.block_iterations = block;
  plan.from_iteration = from;
  plan.share_pct = share_pct;
  return plan;
}
uint64_t held_blocks(const HoldoutPlan& plan, uint64_t blocks) {
  uint64_t held = 0;
  for (uint64_t block = 0; block < blocks; ++block) {
    held += is_held_out(plan, plan.from_iteration + block * plan.block_iterations) ? 1 : 0;
  }
  return held;
}
}  // namespace

TEST_CASE("the held-out share is exact at every length, not only in the long run") {
  for (const double share : {1.0, 3.3, 10.0, 25.0, 50.0, 66.0, 75.0, 99.0}) {
    const auto plan = plan_of(share);
    for (const uint64_t blocks : {1, 2, 10, 37, 100, 1000, 9999}) {
      CAPTURE(share, blocks);
      CHECK(std::abs(static_cast<double>(held_blocks(plan, blocks)) - static_cast<double>(blocks) * share / 100) <=
            1.0);
    }
  }
}

TEST_CASE("at one half, one of every two blocks is held out, in an order that varies") {
  const auto plan = plan_of(50);
  int first = 0;
  for (uint64_t pair = 0; pair < 200; ++pair) {
    const uint64_t at = plan.from_iteration + pair * 2 * plan.block_iterations;
    REQUIRE(is_held_out(plan, at) != is_held_out(plan, at + plan.block_iterations));
    first += is_held_out(plan, at) ? 1 : 0;
  }
  CHECK(first > 70);
  CHECK(first < 130);
}

TEST_CASE("plans that are soon replaced hold out their share, too") {
  for (uint64_t first = 0; first < 20; ++first) {
    auto plan = plan_of(10);
    plan.seed = first;
    uint64_t held = 0;
    for (int plans = 0; plans < 500; ++plans, plan.seed = next_seed(plan.seed)) held += held_blocks(plan, 2);
    CAPTURE(first);
    CHECK(held > 60);  // of 1000 blocks, each one in ten by chance: 100, give or take four standard deviations
    CHECK(held < 140);
  }
}

TEST_CASE("a block is held out whole, and block numbers count from the plan's beginning") {
  const auto plan = plan_of(30, 5);
  for (uint64_t block = 0; block < 50; ++block) {
    const bool held = is_held_out(plan, 100 + block * 5);
    for (uint64_t i = 0; i < 5; ++i) {
      CHECK(is_held_out(plan, 100 + block * 5 + i) == held);
      CHECK(block_of(plan, 100 + block * 5 + i) == block);
    }
  }
}

TEST_CASE("nothing is held out before the plan, without blocks, or with a share that is none") {
  CHECK_FALSE(is_held_out(plan_of(100), 99));
  CHECK(is_held_out(plan_of(100), 100));
  CHECK_FALSE(is_held_out(plan_of(50, 0), 1000));
  for (const double share : {0.0, -5.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK(held_blocks(plan_of(share), 100) == 0);
  CHECK(held_blocks(plan_of(1e9), 100) == 100);
}

TEST_CASE("job and seed change the order; the same plan gives the same answer") {
  const auto plan = plan_of(50);
  auto other_job = plan, other_seed = plan;
  other_job.job = "bert";
  other_seed.seed = 8;
  int job_differs = 0, seed_differs = 0;
  for (uint64_t i = 100; i < 1100; ++i) {
    CHECK(is_held_out(plan, i) == is_held_out(plan_of(50), i));
    job_differs += is_held_out(plan, i) != is_held_out(other_job, i) ? 1 : 0;
    seed_differs += is_held_out(plan, i) != is_held_out(other_seed, i) ? 1 : 0;
  }
  CHECK(job_differs > 0);
  CHECK(seed_differs > 0);
}

TEST_CASE("numbers at the ends of their range stay in range") {
  auto plan = plan_of(1e-6, 1, 0);  // rounds to nothing
  CHECK_FALSE(is_held_out(plan, std::numeric_limits<uint64_t>::max()));
  plan.share_pct = 33;
  is_held_out(plan, std::numeric_limits<uint64_t>::max());
  CHECK(block_of(plan, std::numeric_limits<uint64_t>::max()) == std::numeric_limits<uint64_t>::max());
}

TEST_CASE("golden: ranks of different builds must agree, so the choice itself is fixed") {
  const auto plan = plan_of(25, 1, 0);
  std::string order;
  for (uint64_t i = 0; i < 24; ++i) order += is_held_out(plan, i) ? 'H' : '.';
  CHECK(order == "..H..H...H..H...H......H");
}

TEST_CASE("duty picks iterations to its share, evenly, independently of the holdout") {
  auto plan = plan_of(50);
  for (const double duty : {0.0, 1.0, 10.0, 50.0, 90.0, 100.0}) {
    plan.duty_pct = duty;
    int on = 0, held_on = 0, held = 0, off_in_turn = 0, longest_off = 0;
    for (uint64_t i = 0; i < 20000; ++i) {
      const bool is_on = is_on_duty(plan, i);
      on += is_on ? 1 : 0;
      off_in_turn = is_on ? 0 : off_in_turn + 1;
      longest_off = std::max(longest_off, off_in_turn);
      if (!is_held_out(plan, i)) continue;
      ++held;
      held_on += is_on ? 1 : 0;
    }
    CHECK(on / 200.0 == Approx(duty).margin(0.02));
    CHECK(held_on * 100.0 / held == Approx(duty).margin(1));
    if (duty > 0) CHECK(longest_off <= 2.7 * 100 / duty);  // three gap theorem: at most the golden ratio's square
  }
}
