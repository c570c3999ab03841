#include "freeride/policy/time_increase.hpp"

#include <catch2/catch.hpp>
#include <random>

using namespace freeride::policy;

namespace {
BlockMean block(BlockKind kind, double mean_ms, uint64_t iterations = 10) {
  BlockMean b;
  b.kind = kind;
  b.iterations = iterations;
  b.sum_ns = mean_ms * 1e6 * static_cast<double>(iterations);
  return b;
}
constexpr auto kHeld = BlockKind::kHeldOut;
constexpr auto kHarvested = BlockKind::kHarvested;
}  // namespace

TEST_CASE("what an iteration is evidence for") {
  // planned, seen held out, seen harvested, side tasks, transitions
  const auto kind = [](bool planned, bool held, bool harvested, bool tasks, bool transitions) {
    return block_kind({planned, held, harvested, tasks, transitions});
  };
  CHECK(kind(true, true, false, true, false) == BlockKind::kHeldOut);
  CHECK(kind(false, false, true, true, false) == BlockKind::kHarvested);
  CHECK(kind(true, true, true, true, false) == BlockKind::kOther);
  CHECK(kind(false, true, true, true, false) == BlockKind::kOther);
  CHECK(kind(true, true, false, false, false) == BlockKind::kOther);
  CHECK(kind(true, true, false, true, true) == std::nullopt);
  CHECK(kind(true, true, false, false, true) == std::nullopt);
  CHECK(kind(false, false, true, false, true) == BlockKind::kHarvested);
}

TEST_CASE("I and its interval agree with an example computed by hand") {
  // Held out 99, 100, 101: mean 100, s² = 1, s²/n = 1/3. Harvested 101, 102, 103, 102: mean 102, s² = 2/3, s²/n = 1/6.
  // Relative variances 3.33333e-05 and 1.60195e-05; R = 1.02; se = 1.02·sqrt(4.93528e-05) = 7.16566e-03.
  // df = (4.93528e-05)² / (1.11111e-09/2 + 2.56624e-10/3) = 3.7993; t(0.975, 3.7993) = 2.8353.
  const auto i = time_increase({block(kHeld, 99), block(kHarvested, 101), block(kHarvested, 102), block(kHeld, 100),
                                block(kHeld, 101), block(kHarvested, 103), block(kHarvested, 102)});
  REQUIRE(i.measured);
  CHECK(i.increase_pct == Approx(2.0));
  CHECK(i.ci95_low_pct == Approx(-0.03165).margin(1e-4));
  CHECK(i.ci95_high_pct == Approx(4.0317).margin(1e-4));
  CHECK(i.heldout_ms == Approx(100));
  CHECK(i.harvested_ms == Approx(102));
  CHECK(i.heldout_blocks == 3);
  CHECK(i.harvested_blocks == 4);
}

TEST_CASE("too few blocks of a kind give no interval") {
  CHECK_FALSE(time_increase({}).measured);
  const auto i = time_increase(
      {block(kHeld, 99), block(kHeld, 100), block(kHarvested, 100), block(kHarvested, 101), block(kHarvested, 102)});
  CHECK_FALSE(i.measured);
  CHECK(i.heldout_blocks == 2);
}

TEST_CASE("blocks in which nothing could run, and blocks cut short, are left out") {
  std::vector<BlockMean> blocks;
  for (int k = 0; k < 4; ++k) {
    blocks.push_back(block(kHeld, 100));
    blocks.push_back(block(kHarvested, 101));
  }
  blocks.push_back(block(BlockKind::kOther, 500));
  blocks.push_back(block(kHarvested, 500, 4));
  const auto i = time_increase(blocks);
  CHECK(i.increase_pct == Approx(1));
  CHECK(i.ci95_low_pct == Approx(1));
  CHECK(i.harvested_blocks == 4);
}

TEST_CASE("stalls that training has anyway are left out; stalls that only harvested blocks have are not") {
  std::vector<BlockMean> blocks;
  for (int k = 0; k < 4; ++k) {
    blocks.push_back(block(kHeld, 100));
    blocks.push_back(block(kHarvested, 100));
  }
  blocks[1].stalls = 1;
  blocks[1].stall_sum_ns = 2e9;
  auto i = time_increase(blocks);
  CHECK(i.excluded_iterations == 0);
  CHECK(i.increase_pct > 10);
  blocks[2].stalls = 1;
  blocks[2].stall_sum_ns = 2e9;
  i = time_increase(blocks);
  CHECK(i.excluded_iterations == 2);
  CHECK(i.increase_pct == Approx(0).margin(1e-9));
}

TEST_CASE("a series leaves out the start, cuts blocks where number or kind changes, and tells stalls") {
  BlockSeries series;
  for (size_t n = 0; n < kStartupIterations; ++n) series.add(0, kHeld, true, 9e9);
  for (int n = 0; n < 10; ++n) series.add(0, kHeld, true, 1e8);
  series.add(0, kHeld, true, 2e9);
  for (int n = 0; n < 10; ++n) series.add(1, kHeld, n % 5 != 0, 1.1e8);
  for (int n = 0; n < 3; ++n) series.add(1, kHarvested, true, 1.2e8);
  series.add(2, kHarvested, true, -1);
  series.add(2, kHarvested, true, 1e300);
  CHECK(series.median_ns() == Approx(1.1e8));
  REQUIRE(series.blocks().size() == 2);  // the last is still open
  CHECK(series.blocks()[0].iterations == 10);
  CHECK(series.blocks()[0].sum_ns == Approx(1e9));
  CHECK(series.blocks()[0].stalls == 1);
  CHECK(series.blocks()[1].kind == kHeld);
  CHECK(series.blocks()[1].duty_pct == 80);
  CHECK(series.add(2, kHarvested, true, 1.2e8));
  CHECK_FALSE(series.add(2, kHarvested, true, 1.2e8));
  REQUIRE(series.blocks().size() == 3);
  CHECK(series.blocks()[2].iterations == 3);
}

TEST_CASE("a series keeps a bounded number of blocks and continues where it left off") {
  BlockSeries series;
  for (uint64_t n = 0; n < BlockSeries::kMaxBlocks + 100; ++n) series.add(n, kHeld, true, 1e8);
  CHECK(series.blocks().size() == BlockSeries::kMaxBlocks);
  BlockSeries restored;
  restored.restore({series.blocks().begin(), series.blocks().end()});
  restored.add(1, kHeld, true, 1e8);
  restored.add(2, kHeld, true, 1e8);
  CHECK(restored.blocks().size() == BlockSeries::kMaxBlocks);
}

TEST_CASE("the baseline is lost where harvested blocks go on for six strata with none held out between") {
  std::deque<BlockMean> blocks(1);
  blocks.back().kind = BlockKind::kHeldOut;
  BlockMean harvested;
  harvested.kind = BlockKind::kHarvested;
  const auto add = [&](int count) { blocks.insert(blocks.end(), static_cast<size_t>(count), harvested); };
  add(60);
  CHECK_FALSE(baseline_is_lost(blocks, 10));
  add(1);
  CHECK(baseline_is_lost(blocks, 10));
  CHECK_FALSE(baseline_is_lost(blocks, 5));
  CHECK(baseline_is_lost(blocks, 50));
  CHECK_FALSE(baseline_is_lost(blocks, 0));  // nobody wants one
  blocks.resize(blocks.size() + 200);        // no side task was there to run
  CHECK_FALSE(baseline_is_lost(blocks, 5));
  blocks.push_back(blocks.front());
  CHECK_FALSE(baseline_is_lost(blocks, 10));
  CHECK_FALSE(baseline_is_lost({}, 10));
}

TEST_CASE("the interval covers the truth about 95 times in 100, also with noise that lasts for a block") {
  std::mt19937_64 random(20240607);  // fixed: the outcome is the same on every run
  std::normal_distribution<double> block_noise(0, 3e6), iteration_noise(0, 5e6);
  const double truth = 1.5;
  int covered = 0;
  const int runs = 1000;
  for (int run = 0; run < runs; ++run) {
    BlockSeries series;
    for (uint64_t b = 0; b < 24; ++b) {
      const auto kind = b % 2 == 0 ? kHeld : kHarvested;
      const double base = 1e8 * (kind == kHarvested ? 1 + truth / 100 : 1) + block_noise(random);
      for (int n = 0; n < 12; ++n) series.add(b, kind, true, base + iteration_noise(random));
    }
    const auto i = time_increase({series.blocks().begin(), series.blocks().end()});
    REQUIRE(i.measured);
    covered += i.ci95_low_pct <= truth && truth <= i.ci95_high_pct ? 1 : 0;
  }
  CAPTURE(covered);
  CHECK(covered >= 930);
  CHECK(covered <= 970);
}

namespace {
BlockMean on_duty(double duty_pct, double mean_ms) {
  BlockMean b = block(kHarvested, mean_ms);
  b.duty_pct = duty_pct;
  return b;
}
}  // namespace

TEST_CASE("what side tasks cost at full duty comes from blocks of every duty, as numpy's least squares has it") {
  const auto cost =
      duty_cost({block(kHeld, 99), block(kHeld, 100), block(kHeld, 101), on_duty(50, 101), on_duty(50, 102),
                 on_duty(100, 103), on_duty(100, 104), on_duty(100, 102), block(BlockKind::kOther, 500)});
  REQUIRE(cost.measured);
  CHECK(cost.full_pct == Approx(3.0));
  CHECK(cost.ci95_low_pct == Approx(1.24367).margin(1e-4));
  CHECK(cost.ci95_high_pct == Approx(4.75633).margin(1e-4));
}

TEST_CASE("of one duty alone the cost at full duty is I scaled up") {
  const auto cost = duty_cost(
      {block(kHeld, 100), on_duty(25, 101), block(kHeld, 100), on_duty(25, 101), block(kHeld, 100), on_duty(25, 101)});
  REQUIRE(cost.measured);
  CHECK(cost.full_pct == Approx(4));
}

TEST_CASE("cost at full duty is not measured from too few blocks or without any duty") {
  CHECK_FALSE(duty_cost({}).measured);
  CHECK_FALSE(duty_cost({block(kHeld, 100), block(kHeld, 100), on_duty(100, 101), on_duty(100, 101), on_duty(100, 101)})
                  .measured);
  CHECK_FALSE(duty_cost({block(kHeld, 100), block(kHeld, 100), block(kHeld, 100), on_duty(0, 101), on_duty(0, 101),
                         on_duty(0, 101)})
                  .measured);
}
