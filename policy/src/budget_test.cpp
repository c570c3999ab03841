#include "freeride/policy/budget.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

using namespace freeride::policy;

namespace {
DutyCost cost(double low, double full, double high) {
  return {true, full, low, high};
}
const Budget kOnePercent{1.0, 1.0};
constexpr double kPlenty = 30;  // percent of the GPUs' time that side tasks get
// With nothing to pay back.
double next(const DutyCost& measured, const Budget& budget, double now_pct) {
  return next_duty_pct(measured, budget, kPlenty, {now_pct, 0});
}
}  // namespace

TEST_CASE("budget: what a training asks for can only lower it") {
  const Budget one{1.0, 2.0}, as_it_pays{std::nullopt, 2.0};
  CHECK(lowered(one, 0.3).slowdown_pct == 0.3);
  CHECK(lowered(one, 0.0).slowdown_pct == 0.0);
  CHECK(lowered(one, 3.0).slowdown_pct == 1.0);
  CHECK(lowered(one, std::nullopt).slowdown_pct == 1.0);
  CHECK(lowered(as_it_pays, 0.3).slowdown_pct == 0.3);
  CHECK(lowered(as_it_pays, std::nullopt).slowdown_pct == std::nullopt);
  for (const double no : {-1.0, std::nan(""), HUGE_VAL}) {
    CHECK(lowered(one, no).slowdown_pct == 1.0);
    CHECK(lowered(as_it_pays, no).slowdown_pct == std::nullopt);
  }
  CHECK(lowered(one, 0.3).side_worth == 2.0);
}

TEST_CASE("the expected cost is the measured one as far as it is known, and the usual one as far as it is not") {
  CHECK(expected_cost_pct({}) == kUsualCostPct);
  CHECK(expected_cost_pct(cost(1.49, 1.5, 1.51)) == Approx(1.5).epsilon(0.01));
  CHECK(expected_cost_pct(cost(-50, 0, 50)) == Approx(kUsualCostPct).epsilon(0.05));
  // sigma 0.5 and mean 0: the truncated normal one of mean −0.25, by hand −0.25 + 0.5 · 0.35207 ÷ 0.30854.
  CHECK(expected_cost_pct(cost(-0.98, 0, 0.98)) == Approx(0.32053).epsilon(0.001));
  // No jump where the closed form gives way to its limit (sigma 0.1, mean −0.79 and −0.8).
  CHECK(expected_cost_pct(cost(-0.976, -0.780, -0.584)) ==
        Approx(expected_cost_pct(cost(-0.996, -0.8, -0.604))).epsilon(0.04));
  CHECK(expected_cost_pct(cost(-3, -3, -3)) == 0);
  CHECK(expected_cost_pct(cost(10, 30, 50)) == 10);  // what the interval excludes is not expected, whatever the prior
  CHECK(expected_cost_pct(cost(100, 200, 300)) == 100);
  for (const double high : {-1.0, 0.0, 0.5, 3.0, 100.0}) CHECK(expected_cost_pct(cost(-5, (high - 5) / 2, high)) > 0);
}

TEST_CASE("before anything is known the duty is what the budget allows the usual side task") {
  CHECK(first_duty_pct(kOnePercent) == 100);
  CHECK(first_duty_pct(Budget{0.5, 1.0}) == Approx(45));
  CHECK(first_duty_pct(Budget{0.0, 1.0}) == kMinDutyPct);
  CHECK(first_duty_pct(Budget{std::nullopt, 1.0}) == 100);
}

TEST_CASE("more than the budget throttles at once to nine tenths of what meets it") {
  CHECK(next(cost(1.4, 1.5, 1.6), kOnePercent, 100) == Approx(60).epsilon(0.01));
  CHECK(next(cost(29, 30, 31), kOnePercent, 100) == Approx(3).epsilon(0.01));
  CHECK(next(cost(299, 300, 301), Budget{1.0, 100.0}, 100) == Approx(kMinDutyPct));
  CHECK(next(cost(0.1, 0.2, 0.3), Budget{0.0, 1.0}, 100) == Approx(kMinDutyPct));
}

TEST_CASE("what is likely counts, not what is proven") {
  const double unsure = next(cost(-0.5, 1.5, 3.5), kOnePercent, 100);
  CHECK(unsure < 100);
  CHECK(unsure > 60);
  CHECK(next(cost(-1, -0.2, 0.6), kOnePercent, 95) == 100);
  CHECK(next(cost(-7, -4, 3), kOnePercent, 95) == 100);  // a noisy machine says nothing
}

TEST_CASE("between the aim and the budget duty stays, below it rises a tenth at a time") {
  CHECK(next(cost(1.9, 2.0, 2.1), kOnePercent, 48) == 48);
  CHECK(next(cost(1.99, 2.0, 2.01), kOnePercent, 44) == Approx(45).epsilon(0.001));
  CHECK(next(cost(1.9, 2.0, 2.1), kOnePercent, 20) == Approx(30));
  CHECK(next(cost(0.4, 0.5, 0.6), kOnePercent, 40) == Approx(50));
}

TEST_CASE("more than the budget allowed is paid back") {
  const auto two = cost(1.999, 2.0, 2.001);  // allows 50
  CHECK(next_duty_pct(two, kOnePercent, kPlenty, {48, 60}) == Approx(35).epsilon(0.001));
  CHECK(next_duty_pct(two, kOnePercent, kPlenty, {48, 100}) == kMinDutyPct);
  CHECK(next_duty_pct(two, kOnePercent, kPlenty, {48, 49}) == 48);
  CHECK(next_duty_pct(cost(0.4, 0.5, 0.6), kOnePercent, kPlenty, {100, 100}) == 100);
}

TEST_CASE("side tasks that cost more than they are worth get next to nothing, whatever the budget") {
  const auto dear = cost(4, 5, 6);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 1.0}, 30, {}) == 100);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 1.0}, 3, {}) == kMinDutyPct);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 0.1}, 30, {}) == kMinDutyPct);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 1.0}, 5, {}) == 100);  // 4 to 6 against 5 proves nothing
  CHECK(next_duty_pct(dear, Budget{50.0, 1.0}, 3, {}) == kMinDutyPct);
  CHECK(next_duty_pct(cost(-1, 0, 1), Budget{std::nullopt, 1.0}, 0, {}) == 100);
}

TEST_CASE("nothing measured, or nonsense, changes nothing and stays in range") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(next({}, kOnePercent, 60) == 60);
  CHECK(next_duty_pct({}, kOnePercent, kPlenty, {nan, nan}) == 100);
  CHECK(next_duty_pct(cost(1.9, 2.0, 2.1), kOnePercent, kPlenty, {48, nan}) == 48);
  CHECK(next(cost(nan, nan, nan), kOnePercent, 1e9) == 100);
  CHECK(next(cost(1, 2, 3), Budget{nan, 1.0}, 50) == kMinDutyPct);
}

TEST_CASE("the loop settles within the budget in few steps, and gives back when side tasks become cheaper") {
  double duty = 100;
  for (int i = 0; i < 3; ++i) duty = next(cost(3.8, 4.0, 4.2), kOnePercent, duty);
  CHECK(4.0 * duty / 100 <= 1);
  CHECK(4.0 * duty / 100 >= 0.85);
  for (int i = 0; i < 10; ++i) duty = next(cost(0.1, 0.2, 0.3), kOnePercent, duty);
  CHECK(duty == 100);
}
