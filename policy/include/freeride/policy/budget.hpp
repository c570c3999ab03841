// Slowdown budget: how large a share of the iterations may get leases. Training shall not lose more than the user
// allows, nor more than the side tasks are worth.
#pragma once

#include <optional>

#include "freeride/policy/time_increase.hpp"

namespace freeride::policy {

constexpr double kMinDutyPct = 1;  ///< never none at all: without harvested blocks I could not be seen to fall again

/// What side tasks are expected to cost before they have been measured, I at full duty: what the FreeRide paper found
/// (0.9–1.4 %) and docs/results.md (at most 1.5 %).
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

/// I at full duty that is to be expected, percent, 0 or more. It is the mean of a posterior. The likelihood is normal,
/// from the fit and its interval's width. The prior is exponential with the mean kUsualCostPct, since side tasks do not
/// make training faster. But it is at least the interval's lower end, whatever the prior. Before anything is measured
/// it is the prior's mean. Pure; any thread.
double expected_cost_pct(const DutyCost& cost);

/// The duty to begin with, percent: what meets the budget if side tasks cost what is usual. Pure; any thread.
double first_duty_pct(const Budget& budget);

/// The next duty: the share of iterations whose bubbles may get leases, percent. It follows from what side tasks cost
/// at full duty, and from harvested_pct: the share of all GPUs' time of the job that side tasks get at full duty.
///
/// I is proportional to duty. So its slope gives the duty at which the expected I meets the budget, and the aim is nine
/// tenths of that. If the mean duty turns out to have been above what the budget allows, the aim is lower by the same
/// amount until the excess is paid back. A budget is of what training has lost, not of what it is going to lose.
///
/// The whole interval of the slope may say that a job loses more of its GPUs' time than its side tasks are worth. Then
/// the aim is the least duty: what is saved is proportional to duty, too, so the best duty is at one end.
///
/// Duty falls at once, and rises by a tenth of all iterations at a time. Before anything is measured it does not
/// change. Pure; any thread.
double next_duty_pct(const DutyCost& cost, const Budget& budget, double harvested_pct, const Duty& duty);

}  // namespace freeride::policy
