#include "freeride/policy/batch_plan.hpp"

#include <algorithm>

namespace freeride::policy {

bool BatchPlan::holds() const {
  return std::find(begin(), end(), BatchStep::kHold) != end();
}

BatchPlan plan_batch(const Batch& batch) {
  BatchPlan plan;
  const auto add = [&plan](BatchStep step) { plan.steps[plan.count++] = step; };
  if (batch.hook_on && batch.sends) add(BatchStep::kProduce);
  if (batch.hook_on && batch.receives && batch.needed_at_once && batch.sources_hooked) add(BatchStep::kHold);
  add(BatchStep::kPost);
  return plan;
}

}  // namespace freeride::policy
