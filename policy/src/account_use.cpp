#include "freeride/policy/account_use.hpp"

#include <algorithm>
#include <cmath>

namespace freeride::policy {

double decayed(double amount, int64_t age_ns, int64_t half_life_ns) {
  if (age_ns <= 0 || half_life_ns <= 0) return amount;
  return amount * std::exp2(-static_cast<double>(age_ns) / static_cast<double>(half_life_ns));
}

void AccountUse::add(const std::string& account, double amount, int64_t now_ns, int64_t age_ns) {
  if (!std::isfinite(amount) || amount <= 0) return;
  if (sums_.size() >= kMost && sums_.count(account) == 0) make_room(now_ns);
  Sum& sum = sums_[account];
  sum.amount = decayed(sum.amount, now_ns - sum.at_ns, half_life_ns_) + decayed(amount, age_ns, half_life_ns_);
  sum.at_ns = now_ns;
}

std::map<std::string, double> AccountUse::at(int64_t now_ns) const {
  std::map<std::string, double> all;
  for (const auto& [account, sum] : sums_)
    all.emplace_hint(all.end(), account, decayed(sum.amount, now_ns - sum.at_ns, half_life_ns_));
  return all;
}

void AccountUse::make_room(int64_t now_ns) {
  const auto least = std::min_element(sums_.begin(), sums_.end(), [&](const auto& a, const auto& b) {
    return decayed(a.second.amount, now_ns - a.second.at_ns, half_life_ns_) <
           decayed(b.second.amount, now_ns - b.second.at_ns, half_life_ns_);
  });
  sums_.erase(least);
}

}  // namespace freeride::policy
