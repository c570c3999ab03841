// Slowdown budget: how large a share of the iterations may get leases, so that training does not lose more than the
// user allows, nor more than the side tasks are worth.
#pragma once

#include <optional>

#include "freeride/policy/time_increase.hpp"

namespace freeride::policy {

constexpr double kMinDutyPct = 1;  ///< never none at all: without harvested blocks I could not be seen to fall again

struct Budget {
  std::optional<double> slowdown_pct;  ///< the most that I may be; none: as much as pays
  double side_worth = 1;               ///< what a second of a side task is worth, in seconds of a training GPU
};

/// The next duty (share of iterations whose bubbles may get leases, percent), from what side tasks cost at full duty
/// and harvested_pct, the share of all its GPUs' time that side tasks get at full duty.
///
/// I is proportional to duty, so the duty at which it meets the budget is known as soon as its slope is; nine tenths of
/// that is aimed at. Where the whole interval of the slope says that a job loses more of its GPUs' time than its side
/// tasks are worth, the aim is the least duty: saving is proportional to duty, too, so its best is at one end. Down at
/// once, but only once the slowdown is more than noise (the interval's lower end is above 0); up by a tenth of the
/// whole at a time. Not measured, it changes nothing. Pure; any thread.
double next_duty_pct(const DutyCost& cost, const Budget& budget, double harvested_pct, double duty_pct);

}  // namespace freeride::policy
