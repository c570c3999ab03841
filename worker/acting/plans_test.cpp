#include "acting/plans.hpp"

#include <catch2/catch.hpp>

using namespace freeride;
using namespace freeride::worker;

TEST_CASE("plans: the newest that has begun counts, older ones before it", "[plans]") {
  PlanSet set;
  policy::HoldoutPlan plan;
  plan.job = "a";
  plan.share_pct = 10;
  set.merge({plan});
  plan.from_iteration = 100;
  plan.share_pct = 20;
  set.merge({plan});
  const auto* plans = set.of("a");
  CHECK(PlanSet::at(plans, 99)->share_pct == 10);
  CHECK(PlanSet::at(plans, 100)->share_pct == 20);
  CHECK(PlanSet::at(set.of("b"), 1) == nullptr);
  plan.from_iteration = 50;  // replaces what would have counted later
  plan.share_pct = 30;
  set.merge({plan});
  CHECK(PlanSet::at(set.of("a"), 100)->share_pct == 30);
  for (uint64_t i = 0; i < 50; ++i) {
    plan.from_iteration = 1000 + i;
    set.merge({plan});
  }
  CHECK(set.of("a")->size() <= 4);
}
