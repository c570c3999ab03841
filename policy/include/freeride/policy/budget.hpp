// Slowdown budget: how large a share of the bubbles may get leases, so that the measured time increase stays within
// what the user allows.
#pragma once

#include "freeride/policy/time_increase.hpp"

namespace freeride::policy {

constexpr double kMinDutyPct = 5;  ///< never none at all: without harvested blocks I could not be seen to fall again

/// The next duty (share of bubbles that may get a lease, percent). Throttles at once while even the lower end of I's
/// interval is above the budget: by budget ÷ I, at least by a quarter and at most by half. Recovers slowly, by a tenth
/// of the whole, when the mean is within half the budget or the whole interval within the budget; in between it leaves
/// duty as it is. Call it once for every interval measured under the present duty; not measured, it changes nothing.
/// Pure; any thread.
double next_duty_pct(const TimeIncrease& measured, double budget_pct, double duty_pct);

}  // namespace freeride::policy
