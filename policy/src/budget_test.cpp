#include "freeride/policy/budget.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace freeride::policy;

namespace {
DutyCost cost(double low, double full, double high) {
  return {true, full, low, high};
}
const Budget kOnePercent{1.0, 1.0};
constexpr double kPlenty = 30;  // percent of the GPUs' time that side tasks get
}  // namespace

TEST_CASE("more than the budget throttles at once to nine tenths of what meets it") {
  CHECK(next_duty_pct(cost(1.1, 1.5, 1.9), kOnePercent, kPlenty, 100) == Approx(60));
  CHECK(next_duty_pct(cost(0.1, 1.5, 2.9), kOnePercent, kPlenty, 100) == Approx(60));
  CHECK(next_duty_pct(cost(20, 30, 40), kOnePercent, kPlenty, 100) == Approx(3));
  CHECK(next_duty_pct(cost(200, 300, 400), Budget{1.0, 100.0}, kPlenty, 100) == Approx(kMinDutyPct));
  CHECK(next_duty_pct(cost(0.1, 0.2, 0.3), Budget{0.0, 1.0}, kPlenty, 100) == Approx(kMinDutyPct));
}

TEST_CASE("a slowdown that may be none is no reason to throttle") {
  CHECK(next_duty_pct(cost(-0.5, 1.5, 3.5), kOnePercent, kPlenty, 100) == 100);
  CHECK(next_duty_pct(cost(-0.5, 1.5, 3.5), kOnePercent, kPlenty, 40) == 50);
  CHECK(next_duty_pct(cost(-1, -0.2, 0.6), kOnePercent, kPlenty, 95) == 100);
}

TEST_CASE("between the aim and the budget duty stays, below it rises a tenth at a time") {
  CHECK(next_duty_pct(cost(1.9, 2.0, 2.1), kOnePercent, kPlenty, 48) == 48);
  CHECK(next_duty_pct(cost(1.9, 2.0, 2.1), kOnePercent, kPlenty, 44) == Approx(45));
  CHECK(next_duty_pct(cost(1.9, 2.0, 2.1), kOnePercent, kPlenty, 20) == Approx(30));
  CHECK(next_duty_pct(cost(0.4, 0.5, 0.6), kOnePercent, kPlenty, 40) == Approx(50));
}

TEST_CASE("side tasks that cost more than they are worth get next to nothing, whatever the budget") {
  const auto dear = cost(4, 5, 6);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 1.0}, 30, 100) == 100);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 1.0}, 3, 100) == kMinDutyPct);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 0.1}, 30, 100) == kMinDutyPct);
  CHECK(next_duty_pct(dear, Budget{std::nullopt, 1.0}, 5, 100) == 100);  // 4 to 6 against 5 proves nothing
  CHECK(next_duty_pct(dear, Budget{50.0, 1.0}, 3, 100) == kMinDutyPct);
  CHECK(next_duty_pct(cost(-1, 0, 1), Budget{std::nullopt, 1.0}, 0, 100) == 100);
}

TEST_CASE("nothing measured, or nonsense, changes nothing and stays in range") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(next_duty_pct({}, kOnePercent, kPlenty, 60) == 60);
  CHECK(next_duty_pct({}, kOnePercent, kPlenty, nan) == 100);
  CHECK(next_duty_pct(cost(nan, nan, nan), kOnePercent, kPlenty, 1e9) == 100);
  CHECK(next_duty_pct(cost(1, 2, 3), Budget{nan, 1.0}, kPlenty, 50) == kMinDutyPct);
}

TEST_CASE("the loop settles within the budget in few steps, and gives back when side tasks become cheaper") {
  double duty = 100;
  for (int i = 0; i < 3; ++i) duty = next_duty_pct(cost(3.8, 4.0, 4.2), kOnePercent, kPlenty, duty);
  CHECK(4.0 * duty / 100 <= 1);
  CHECK(4.0 * duty / 100 >= 0.85);
  for (int i = 0; i < 10; ++i) duty = next_duty_pct(cost(0.1, 0.2, 0.3), kOnePercent, kPlenty, duty);
  CHECK(duty == 100);
}
