#include "freeride/policy/budget.hpp"

#include <algorithm>
#include <cmath>

namespace freeride::policy {
namespace {

constexpr double kAim = 0.9;     // of the budget: above it for half of the time would be no budget
constexpr double kRisePct = 10;  // an estimate that is wrong does little harm before it is put right

double aim_pct(const DutyCost& cost, const Budget& budget, double harvested_pct, double duty_pct) {
  const bool slows = cost.ci95_low_pct > 0;
  if (!slows) return 100;
  if (cost.ci95_low_pct > budget.side_worth * harvested_pct) return kMinDutyPct;
  if (!budget.slowdown_pct) return 100;
  if (!(*budget.slowdown_pct >= 0)) return kMinDutyPct;  // not even a number
  const double meets = 100 * *budget.slowdown_pct / cost.full_pct;
  // Between the aim and the budget there is nothing to put right.
  if (duty_pct <= meets && duty_pct >= kAim * meets) return duty_pct;
  return kAim * meets;
}

}  // namespace

double next_duty_pct(const DutyCost& cost, const Budget& budget, double harvested_pct, double duty_pct) {
  const double duty = std::isfinite(duty_pct) ? std::clamp(duty_pct, kMinDutyPct, 100.0) : 100.0;
  if (!cost.measured || !std::isfinite(cost.full_pct) || !std::isfinite(cost.ci95_low_pct)) return duty;
  const double aim = std::clamp(aim_pct(cost, budget, harvested_pct, duty), kMinDutyPct, 100.0);
  return std::min(aim, duty + kRisePct);
}

}  // namespace freeride::policy
