// Holdout: which iterations get no leases, so that training with and without side tasks can be compared. Also which of
// the others get leases under a slowdown budget. Every rank and the manager come to the same answer without a message.
#pragma once

#include <cstdint>
#include <string>

namespace freeride::policy {

/// One job's plan, made by the manager. Iterations are counted in blocks of block_iterations from from_iteration on.
struct HoldoutPlan {
  std::string job;
  uint64_t seed = 0;
  uint64_t block_iterations = 0;  ///< 0: nothing is held out
  uint64_t from_iteration = 0;    ///< before it the previous plan holds; this one then holds nothing out
  double share_pct = 0;           ///< of the blocks that is held out, 0–100
  double duty_pct = 100;          ///< of the other iterations whose bubbles may get leases, 0–100
};

/// Whether the plan holds `iteration` out. The share is exact, not only expected. Consecutive blocks form a stratum,
/// and one block of each stratum is held out (above 50 %: one is not). A hash of job, seed and stratum chooses it. At
/// 50 % that is one of every two. Pure, no allocation, any thread, under 100 ns.
bool is_held_out(const HoldoutPlan& plan, uint64_t iteration);

/// The seed of the plan that follows one with `seed`. With the same seed, every plan would hold out the same block of
/// its first stratum. Plans that are replaced before that block would hold out none, or, if it is the first, far too
/// many. With a new one each time, plans of any length hold out their share on average. Pure; any thread.
uint64_t next_seed(uint64_t seed);

/// Whether bubbles of `iteration` may get leases under the plan's duty. That is true of duty_pct of the iterations,
/// spread as evenly as can be (Weyl's sequence of the golden ratio). All ranks choose the same whole iterations, since
/// the slowest rank sets an iteration's length. If bubbles were chosen singly, more iterations would be delayed for the
/// same harvest. Says nothing about the holdout. Pure, no allocation, any thread.
bool is_on_duty(const HoldoutPlan& plan, uint64_t iteration);

/// Number of the block that holds `iteration`, from 0; 0 where the plan has no blocks or has not begun.
uint64_t block_of(const HoldoutPlan& plan, uint64_t iteration);

}  // namespace freeride::policy
