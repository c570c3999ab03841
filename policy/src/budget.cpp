#include "freeride/policy/budget.hpp"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <cmath>

namespace freeride::policy {
namespace {

constexpr double kAim = 0.9;     // of the budget: above it for half of the time would be no budget
constexpr double kRisePct = 10;  // an estimate that is wrong does little harm before it is put right

double allowed_pct(const Budget& budget, double cost_pct) {
  if (!budget.slowdown_pct) return 100;
  if (!(*budget.slowdown_pct >= 0)) return kMinDutyPct;  // not even a number
  return cost_pct <= *budget.slowdown_pct ? 100 : 100 * *budget.slowdown_pct / cost_pct;
}

double aim_pct(double allowed, const Duty& duty) {
  if (allowed >= 100) return 100;
  const double aim = kAim * allowed;
  if (duty.mean_pct > allowed) return aim - (duty.mean_pct - allowed);
  // Between the aim and the budget there is nothing to put right.
  return duty.now_pct <= allowed && duty.now_pct >= aim ? duty.now_pct : aim;
}

}  // namespace

Budget lowered(const Budget& budget, std::optional<double> asked_pct) {
  Budget lower = budget;
  if (!asked_pct || !std::isfinite(*asked_pct) || *asked_pct < 0) return lower;
  lower.slowdown_pct = budget.slowdown_pct ? std::min(*budget.slowdown_pct, *asked_pct) : *asked_pct;
  return lower;
}

double expected_cost_pct(const DutyCost& cost) {
  const double sigma = (cost.ci95_high_pct - cost.ci95_low_pct) / 2 / 1.96;
  if (!cost.measured || !std::isfinite(cost.full_pct) || !std::isfinite(sigma)) return kUsualCostPct;
  if (!(sigma > 0)) return std::max(cost.full_pct, 0.0);
  // The product of the two densities is a normal one with its mean moved, cut off at 0. With a wide interval the prior
  // outweighs costs that the interval excludes, so its lower end counts at least.
  const double least = std::isfinite(cost.ci95_low_pct) ? cost.ci95_low_pct : 0;
  const double mean = cost.full_pct - sigma * sigma / kUsualCostPct;
  const double cut = -mean / sigma;
  if (cut > 8) return std::max(sigma / cut, least);  // the limit of what follows, which is 0 ÷ 0 there
  const boost::math::normal unit;
  return std::max(mean + sigma * boost::math::pdf(unit, cut) / boost::math::cdf(boost::math::complement(unit, cut)),
                  least);
}

double first_duty_pct(const Budget& budget) {
  return std::clamp(aim_pct(allowed_pct(budget, kUsualCostPct), {100, 0}), kMinDutyPct, 100.0);
}

double next_duty_pct(const DutyCost& cost, const Budget& budget, double harvested_pct, const Duty& duty) {
  const double now = std::isfinite(duty.now_pct) ? std::clamp(duty.now_pct, kMinDutyPct, 100.0) : 100.0;
  if (!cost.measured || !std::isfinite(cost.full_pct) || !std::isfinite(cost.ci95_low_pct)) return now;
  const bool pays = !(cost.ci95_low_pct > 0 && cost.ci95_low_pct > budget.side_worth * harvested_pct);
  const double mean = std::isfinite(duty.mean_pct) ? duty.mean_pct : now;
  const double aim = pays ? aim_pct(allowed_pct(budget, expected_cost_pct(cost)), {now, mean}) : kMinDutyPct;
  return std::min(std::clamp(aim, kMinDutyPct, 100.0), now + kRisePct);
}

}  // namespace freeride::policy
