#include "freeride/policy/hold_cost.hpp"

#include <catch2/catch.hpp>
#include <cmath>

using namespace freeride::policy;

namespace {

// `more_pct`: by how much held iterations are longer; what comes by chance is the same each time.
HoldCost after(size_t periods, double more_pct, double noise_pct = 0.2) {
  HoldCost cost;
  for (size_t i = 0; i < periods; ++i) {
    const double chance = noise_pct * std::sin(static_cast<double>(3 * i * i + i)) / 100;
    cost.add(i, Arm::kPlain, 250e6);
    cost.add(i, Arm::kHeld, 250e6 * (1 + more_pct / 100 + chance));
    for (int k = 0; k < 40; ++k) cost.add(i, Arm::kLeased, 250e6 * (1 + more_pct / 50 + chance));
  }
  return cost;
}

}  // namespace

TEST_CASE("hold cost: three arms with their intervals", "[hold_cost]") {
  CHECK_FALSE(after(HoldCost::kLeastPeriods, 2).held().measured);  // the last period has not ended
  const HoldCost cost = after(HoldCost::kLeastPeriods + 1, 2);
  REQUIRE(cost.held().measured);
  CHECK(cost.held().periods == HoldCost::kLeastPeriods);
  CHECK(cost.held().increase_pct == Approx(2).margin(0.2));
  CHECK(cost.held().ci95_low_pct < cost.held().increase_pct);
  CHECK(cost.held().ci95_high_pct > cost.held().increase_pct);
  CHECK(cost.leased().increase_pct == Approx(4).margin(0.2));
}

TEST_CASE("hold cost: holds are off once they cost more than half a percent, and no sooner", "[hold_cost]") {
  CHECK(after(20, 1).hurts());
  CHECK_FALSE(after(HoldCost::kLeastPeriods, 1).hurts());
  CHECK_FALSE(after(20, 0.3).hurts());
  CHECK_FALSE(after(20, -1).hurts());
  CHECK_FALSE(after(9, 0.6, 5).hurts());  // that may be chance
}

TEST_CASE("hold cost: stalls and what makes no sense are left out", "[hold_cost]") {
  HoldCost cost = after(20, 0.1);
  const double before = cost.held().increase_pct;
  cost.add(100, Arm::kPlain, 250e6);
  cost.add(100, Arm::kHeld, 5e9);
  cost.add(101, Arm::kHeld, -1);
  cost.add(101, Arm::kHeld, std::nan(""));
  cost.add(102, Arm::kPlain, 1);
  CHECK(std::abs(cost.held().increase_pct - before) < 0.1);
  CHECK_FALSE(cost.hurts());
  cost.forget();
  CHECK(cost.held().periods == 0);
}
