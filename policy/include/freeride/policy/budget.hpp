// Slowdown budget: how large a share of the iterations may get leases, so that training does not lose more than the
// user allows, nor more than the side tasks are worth.
#pragma once

#include <optional>

#include "freeride/policy/time_increase.hpp"

namespace freeride::policy {

constexpr double kMinDutyPct = 1;  ///< never none at all: without harvested blocks I could not be seen to fall again

/// What side tasks are expected to cost before they have been measured, I at full duty: what the FreeRide paper found
/// (0.9–1.4 %) and docs/results.md (0.1–1.3 %).
constexpr double kUsualCostPct = 1;

struct Budget {
  std::optional<double> slowdown_pct;  ///< the most that I may be; none: as much as pays
  double side_worth = 1;               ///< what a second of a side task is worth, in seconds of a training GPU
};

/// The budget of a job whose training has asked for at most `asked_pct`. What it asks for can only lower the budget;
/// what is no number from 0 on asks for nothing. Pure; any thread.
Budget lowered(const Budget& budget, std::optional<double> asked_pct);

struct Duty {
  double now_pct = 100;   ///< in force
  double mean_pct = 100;  ///< over the time that the budget is reckoned for
};

/// I at full duty that is to be expected, percent, 0 or more: the mean of the posterior that follows from the fit (a
/// normal likelihood with its interval's width) and an exponential prior of mean kUsualCostPct, since side tasks do not
/// make training faster. Not measured, the prior's mean. Pure; any thread.
double expected_cost_pct(const DutyCost& cost);

/// The duty to begin with, percent: what meets the budget if side tasks cost what is usual. Pure; any thread.
double first_duty_pct(const Budget& budget);

/// The next duty (share of iterations whose bubbles may get leases, percent), from what side tasks cost at full duty
/// and harvested_pct, the share of all its GPUs' time that side tasks get at full duty.
///
/// I is proportional to duty, so the duty at which the expected I meets the budget is known as soon as its slope is;
/// nine tenths of that is aimed at. Where the mean duty has been above what the budget allows, as it turns out now, the
/// aim is as much lower as that was too high, until that is paid back: a budget is of what training has lost, not of
/// what it is going to lose. Where the whole interval of the slope says that a job loses more of its GPUs' time than
/// its side tasks are worth, the aim is the least duty: saving is proportional to duty, too, so its best is at one end.
/// Down at once, up by a tenth of the whole at a time. Not measured, it changes nothing. Pure; any thread.
double next_duty_pct(const DutyCost& cost, const Budget& budget, double harvested_pct, const Duty& duty);

}  // namespace freeride::policy
