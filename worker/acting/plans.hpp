// Holdout plans as a worker keeps them: by job, the one before included, since a new plan counts from a later iteration
// on.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "freeride/policy/holdout.hpp"

namespace freeride::worker {

/// Immutable once it is shared between threads.
class PlanSet {
 public:
  using Plans = std::vector<policy::HoldoutPlan>;  // of one job, by from_iteration, ascending

  /// Adds plans, replacing those of the same job that count from the same or a later iteration.
  void merge(const std::vector<policy::HoldoutPlan>& news) {
    for (const policy::HoldoutPlan& plan : news) {
      Plans& plans = by_job_[plan.job];
      std::erase_if(plans, [&](const auto& old) { return old.from_iteration >= plan.from_iteration; });
      plans.push_back(plan);
      if (plans.size() > kKept) plans.erase(plans.begin());
    }
    while (by_job_.size() > kJobs) by_job_.erase(by_job_.begin());
  }

  /// The plans of `job`, or null. The pointer is valid as long as this set.
  const Plans* of(const std::string& job) const {
    const auto it = by_job_.find(job);
    return it == by_job_.end() ? nullptr : &it->second;
  }

  /// The plan that holds for `iteration`, or null: nothing is held out. No allocation.
  static const policy::HoldoutPlan* at(const Plans* plans, uint64_t iteration) {
    if (plans == nullptr) return nullptr;
    for (auto it = plans->rbegin(); it != plans->rend(); ++it) {
      if (it->from_iteration <= iteration) return &*it;
    }
    return nullptr;
  }

 private:
  static constexpr size_t kKept = 4, kJobs = 64;
  std::map<std::string, Plans> by_job_;
};

}  // namespace freeride::worker
