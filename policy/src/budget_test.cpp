#include "freeride/policy/budget.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace freeride::policy;

namespace {
TimeIncrease measured(double low, double mean, double high) {
  TimeIncrease i;
  i.measured = true;
  i.ci95_low_pct = low;
  i.increase_pct = mean;
  i.ci95_high_pct = high;
  return i;
}
}  // namespace

TEST_CASE("an interval that lies above the budget throttles, by how far it is above") {
  CHECK(next_duty_pct(measured(1.1, 1.4, 1.7), 1, 100) == Approx(100 / 1.4));
  CHECK(next_duty_pct(measured(1.01, 1.1, 1.2), 1, 100) == Approx(75));  // at least by a quarter
  CHECK(next_duty_pct(measured(20, 30, 40), 1, 100) == Approx(50));      // at most by half
  CHECK(next_duty_pct(measured(20, 30, 40), 1, 6) == Approx(kMinDutyPct));
  CHECK(next_duty_pct(measured(0.1, 0.2, 0.3), 0, 100) == Approx(50));  // no budget at all
}

TEST_CASE("an interval that contains the budget proves nothing: duty stays") {
  CHECK(next_duty_pct(measured(0.2, 0.9, 1.6), 1, 40) == 40);
  CHECK(next_duty_pct(measured(0.9, 1.5, 2.1), 1, 40) == 40);
}

TEST_CASE("within the budget duty recovers slowly, up to all") {
  CHECK(next_duty_pct(measured(-2, 0.3, 2.6), 1, 40) == 50);
  CHECK(next_duty_pct(measured(0.6, 0.7, 0.8), 1, 40) == 50);
  CHECK(next_duty_pct(measured(-1, 0, 1), 1, 95) == 100);
}

TEST_CASE("nothing measured, or nonsense, changes nothing and stays in range") {
  CHECK(next_duty_pct({}, 1, 60) == 60);
  CHECK(next_duty_pct({}, 1, std::numeric_limits<double>::quiet_NaN()) == 100);
  CHECK(next_duty_pct(measured(0, std::numeric_limits<double>::quiet_NaN(), 0), 1, 1e9) == 100);
}

TEST_CASE("under a slowdown proportional to duty the loop settles below the budget and does not die") {
  double duty = 100;
  for (int i = 0; i < 50; ++i) {
    const double slowdown = 4.0 * duty / 100;
    duty = next_duty_pct(measured(slowdown - 0.1, slowdown, slowdown + 0.1), 1, duty);
    CHECK(duty >= kMinDutyPct);
  }
  CHECK(4.0 * duty / 100 <= 1.4);
  CHECK(duty >= 10);
}
