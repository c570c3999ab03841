#include "freeride/policy/batch_plan.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

using freeride::policy::Batch;
using freeride::policy::BatchStep;
using freeride::policy::holds_at_wait;
using freeride::policy::plan_batch;

namespace {

std::vector<BatchStep> steps(const Batch& batch) {
  const auto plan = plan_batch(batch);
  return {plan.begin(), plan.end()};
}

}  // namespace

TEST_CASE("a batch's counters come before its hold, and the batch after both") {
  const Batch batch{.hook_on = true, .sends = true, .receives = true, .needed_at_once = true, .sources_hooked = true};
  CHECK(steps(batch) == std::vector{BatchStep::kProduce, BatchStep::kHold, BatchStep::kPost});
  CHECK(plan_batch(batch).holds());
}

TEST_CASE("a batch is posted whole and once, and held only with every reason to") {
  for (unsigned bits = 0; bits < 128; ++bits) {
    const Batch batch{(bits & 1) != 0,  (bits & 2) != 0,  (bits & 4) != 0, (bits & 8) != 0,
                      (bits & 16) != 0, (bits & 32) != 0, (bits & 64) != 0};
    const auto made = steps(batch);
    CHECK(std::count(made.begin(), made.end(), BatchStep::kPost) == 1);
    CHECK(made.back() == BatchStep::kPost);
    const bool reasons = batch.hook_on && batch.receives && batch.needed_at_once && batch.sources_hooked;
    CHECK(plan_batch(batch).holds() == reasons);
    CHECK((plan_batch(batch).holds() && plan_batch(batch).holds_apart()) == false);
    CHECK(plan_batch(batch).holds_apart() == holds_at_wait(batch));
    // Also a send that nobody here holds for is counted: the other side decides by itself whether to hold.
    CHECK((made.front() == BatchStep::kProduce) == (batch.hook_on && batch.sends));
  }
}

TEST_CASE("a batch posted early is held apart only if it sends nothing and has one source") {
  const Batch early{
      .hook_on = true, .receives = true, .sources_hooked = true, .posted_early = true, .one_source = true};
  CHECK(steps(early) == std::vector{BatchStep::kHoldApart, BatchStep::kPost});
  Batch sends = early, sources = early, unknown = early;
  sends.sends = true;
  sources.one_source = false;
  unknown.posted_early = false;
  CHECK(steps(sends) == std::vector{BatchStep::kProduce, BatchStep::kPost});
  CHECK(steps(sources) == std::vector{BatchStep::kPost});
  CHECK(steps(unknown) == std::vector{BatchStep::kPost});
}
