#include "freeride/policy/budget.hpp"

#include <algorithm>
#include <cmath>

namespace freeride::policy {

double next_duty_pct(const TimeIncrease& measured, double budget_pct, double duty_pct) {
  const double duty = std::isfinite(duty_pct) ? std::clamp(duty_pct, kMinDutyPct, 100.0) : 100.0;
  if (!measured.measured || !std::isfinite(measured.increase_pct)) return duty;
  if (measured.ci95_low_pct > budget_pct) {
    const double factor = std::clamp(budget_pct / measured.increase_pct, 0.5, 0.75);
    return std::max(kMinDutyPct, duty * factor);
  }
  if (measured.increase_pct <= budget_pct / 2 || measured.ci95_high_pct <= budget_pct)
    return std::min(100.0, duty + 10);
  return duty;
}

}  // namespace freeride::policy
