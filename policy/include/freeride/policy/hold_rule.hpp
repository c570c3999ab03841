// Hold rule: in which iterations a hook on a GPU lets the training's thread sleep in its waits, so that side tasks can
// have leases there. A thread that sleeps posts nothing ahead. A training whose host is hardly faster than its GPU is
// slowed by that, with side tasks and without: so nothing is held where no lease could follow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/policy/holdout.hpp"

namespace freeride::policy {

struct HoldRule {
  enum class Kind {
    kNever,    ///< no worker, or no side task that a lease could go to
    kAlways,   ///< a worker that says nothing of it, or measurements
    kPlanned,  ///< in iterations whose bubbles may get leases
  };
  static constexpr size_t kMostPlans = 2;

  Kind kind = Kind::kNever;
  std::vector<HoldoutPlan> plans;  ///< kPlanned; of one job, by from_iteration, ascending; none: every iteration
  /// Of the baseline iterations, and of the open ones without leases, one in so many is held all the same, so that the
  /// worker can look there for work that side tasks have left on the GPU; 0: none. The plan's seed chooses them: the
  /// same on all ranks, and no side task knows it.
  uint32_t baseline_one_in = 0, off_duty_one_in = 0;
};

/// Whether `iteration` is held. Pure, no allocation, any thread, under 200 ns.
bool is_held(const HoldRule& rule, uint64_t iteration);

/// As a worker tells it a hook: one line, at most 400 bytes for a job's name of 63. Of the plans the newest kMostPlans.
std::string text_of(const HoldRule& rule);
/// Errors: kInvalidArgument, also for shares outside 0–100.
Result<HoldRule> parse_hold_rule(std::string_view text);

}  // namespace freeride::policy
