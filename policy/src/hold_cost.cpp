#include "freeride/policy/hold_cost.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

namespace freeride::policy {

void HoldCost::add(uint64_t period, Arm arm, double duration_ns) {
  if (!(duration_ns > 0)) return;
  if (period != period_) finish();
  period_ = period;
  Sum& sum = sums_.at(static_cast<size_t>(arm));
  sum.ns += duration_ns;
  sum.most_ns = std::max(sum.most_ns, duration_ns);
  ++sum.count;
}

void HoldCost::finish() {
  const Sum& plain = sums_[static_cast<size_t>(Arm::kPlain)];
  if (plain.count > 0) {
    note(held_, sums_[static_cast<size_t>(Arm::kHeld)], plain);
    note(leased_, sums_[static_cast<size_t>(Arm::kLeased)], plain);
  }
  sums_ = {};
}

void HoldCost::note(Ring& ring, const Sum& of, const Sum& plain) {
  const double usual = plain.ns / static_cast<double>(plain.count);
  if (of.count == 0 || of.most_ns > kStallFactor * usual || plain.most_ns > kStallFactor * usual) return;
  ring.pct[ring.next] = 100 * (of.ns / static_cast<double>(of.count) / usual - 1);
  ring.next = (ring.next + 1) % kMostPeriods;
  ring.used = std::min(ring.used + 1, kMostPeriods);
}

ArmCost HoldCost::cost(const Ring& ring) {
  ArmCost cost;
  cost.periods = ring.used;
  if (ring.used < kLeastPeriods) return cost;
  const auto n = static_cast<double>(ring.used);
  double mean = 0, squares = 0;
  for (size_t i = 0; i < ring.used; ++i) mean += ring.pct[i] / n;
  for (size_t i = 0; i < ring.used; ++i) squares += (ring.pct[i] - mean) * (ring.pct[i] - mean);
  const double t = boost::math::quantile(boost::math::students_t(n - 1), 0.975);
  const double half = t * std::sqrt(squares / (n - 1) / n);
  cost.measured = true;
  cost.increase_pct = mean;
  cost.ci95_low_pct = mean - half;
  cost.ci95_high_pct = mean + half;
  return cost;
}

bool HoldCost::hurts() const {
  const ArmCost cost = held();
  return cost.measured && cost.increase_pct > kMostPct && cost.ci95_low_pct > 0;
}

void HoldCost::forget() {
  *this = HoldCost();
}

}  // namespace freeride::policy
