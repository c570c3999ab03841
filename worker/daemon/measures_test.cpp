#include "daemon/measures.hpp"

#include <catch2/catch.hpp>
#include <cmath>

using namespace freeride;
using namespace freeride::worker;

TEST_CASE("a plan that makes no sense holds nothing out and gives no leases", "[plans]") {
  bus::HoldoutPlan plan;
  plan.share_pct = std::nan("");
  plan.duty_pct = std::nan("");
  CHECK(holdout_plan(plan).share_pct == 0);
  CHECK(holdout_plan(plan).duty_pct == 0);
  plan.share_pct = 300;
  plan.duty_pct = -4;
  CHECK(holdout_plan(plan).share_pct == 100);
  CHECK(holdout_plan(plan).duty_pct == 0);
}
