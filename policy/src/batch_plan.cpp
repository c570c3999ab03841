#include "freeride/policy/batch_plan.hpp"

#include <algorithm>

namespace freeride::policy {

bool BatchPlan::holds() const {
  return std::find(begin(), end(), BatchStep::kHold) != end();
}

bool BatchPlan::holds_apart() const {
  return std::find(begin(), end(), BatchStep::kHoldApart) != end();
}

BatchPlan plan_batch(const Batch& batch) {
  BatchPlan plan;
  const auto add = [&plan](BatchStep step) { plan.steps[plan.count++] = step; };
  if (batch.hook_on && batch.sends) add(BatchStep::kProduce);
  if (batch.hook_on && batch.receives && batch.needed_at_once && batch.sources_hooked) add(BatchStep::kHold);
  if (holds_at_wait(batch)) add(BatchStep::kHoldApart);
  add(BatchStep::kPost);
  return plan;
}

bool holds_at_wait(const Batch& batch) {
  return batch.hook_on && batch.receives && !batch.needed_at_once && batch.posted_early && !batch.sends &&
         batch.one_source && batch.sources_hooked;
}

}  // namespace freeride::policy
