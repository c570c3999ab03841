// Time increase I: how much longer training iterations take because of side tasks, with its uncertainty, from
// alternating blocks of iterations with leases and without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace freeride::policy {

/// What a block of iterations was used for.
enum class BlockKind : uint8_t {
  kHeldOut,    ///< no leases, by the holdout plan
  kHarvested,  ///< leases were given, or would have been had a bubble been long enough
  kOther,      ///< no side task was there to run: neither treatment nor control
};

/// What is known of one iteration, from all ranks.
struct IterationSnapshot {
  bool planned_held_out = false;  ///< by the plan
  bool seen_held_out = false;     ///< some rank's worker held it out
  bool seen_harvested = false;    ///< some rank's worker did not
  bool side_tasks = false;        ///< some were there to run, or had a lease
  bool transitions = false;  ///< one was created, initialised, profiled, saved or stopped in it, in no bubble's lease
};

/// What an iteration is evidence for; nothing: it is left out of its block.
///
/// Transitions cost training, too, and happen whether an iteration is held out or not. Iterations with one are left out
/// of the held-out blocks, which have to be free of side work. They stay in the harvested blocks, at the rate at which
/// they happen, so their cost is in I. What ranks disagree about (a plan came late) is evidence for nothing. Pure; any
/// thread.
std::optional<BlockKind> block_kind(const IterationSnapshot& iteration);

/// A finished block. Iterations of one block are alike in noise (clocks, page cache, neighbours). So the interval
/// counts blocks, not iterations.
struct BlockMean {
  BlockKind kind = BlockKind::kOther;
  double duty_pct = 100;    ///< share of them that was on duty; told only of harvested blocks
  uint64_t iterations = 0;  ///< ordinary ones
  double sum_ns = 0;        ///< of their durations
  uint64_t stalls = 0;      ///< iterations of more than kStallFactor × the median so far
  double stall_sum_ns = 0;
};

constexpr size_t kStartupIterations =
    5;  ///< left out: lazy allocation and first-use initialisation, in no relation to side tasks
constexpr double kStallFactor = 10;  ///< beyond it an iteration is a stall: a checkpoint, an evaluation, a debugger
constexpr size_t kMinBlocks = 3;     ///< of each kind, for an interval

struct TimeIncrease {
  bool measured = false;  ///< false: fewer than kMinBlocks of a kind; nothing else but the counts is set then
  double increase_pct = 0, ci95_low_pct = 0, ci95_high_pct = 0;
  double heldout_ms = 0, harvested_ms = 0;  ///< mean iteration
  size_t heldout_blocks = 0, harvested_blocks = 0;
  uint64_t excluded_iterations = 0;  ///< stalls left out
};

/// I = mean of the harvested blocks' means ÷ mean of the held-out blocks' means − 1. The interval is from the delta
/// method for a ratio of independent means, with Student's t at Welch–Satterthwaite's degrees of freedom.
///
/// Blocks with less than half the median number of iterations (cut short at either end) are left out. Stalls are left
/// out only if they are at most twice as frequent in harvested blocks as in held-out ones. What only harvested blocks
/// show may be caused by side tasks, and is never explained away. Pure; any thread.
TimeIncrease time_increase(const std::vector<BlockMean>& blocks);

/// What side tasks cost at full duty, learned from blocks of every duty. A plan's duty picks iterations (is_on_duty),
/// so I is proportional to duty.
struct DutyCost {
  bool measured = false;  ///< false: fewer than kMinBlocks of a kind, or no harvested block with any duty
  double full_pct = 0, ci95_low_pct = 0, ci95_high_pct = 0;  ///< I at a duty of 100 %
};

/// Fits mean iteration = a + b · duty by least squares, over the blocks that time_increase() would use. Held-out blocks
/// have a duty of 0. full_pct is b ÷ a. Its interval is from the delta method, with Student's t at n − 2 degrees of
/// freedom. Blocks of earlier duties count as well, so a controller need not wait for new ones after each change. Pure;
/// any thread.
DutyCost duty_cost(const std::vector<BlockMean>& blocks);

/// Whether there have been harvested blocks for a while, but no held-out ones. They should be share_pct of all, and
/// come at least once in two strata (is_held_out). The baseline is lost if kLostStrata strata in a row had none.
/// Creating and stopping side tasks without end causes that. Then the known cost is one of earlier times. Pure; any
/// thread.
bool baseline_is_lost(const std::deque<BlockMean>& blocks, double share_pct);
constexpr double kLostStrata = 6;

/// Mean duty of the harvested blocks, percent, by iterations; NaN where there is none. Pure; any thread.
double mean_duty_pct(const std::vector<BlockMean>& blocks);

/// Folds a rank's iterations, in order, into blocks. Bounded memory: the last kMaxBlocks. Not thread-safe.
class BlockSeries {
 public:
  static constexpr size_t kMaxBlocks = 4096;

  /// One iteration. A block ends where `block` or `kind` changes; true: this iteration has ended one, now the last of
  /// blocks(). Durations that are not positive or exceed an hour are ignored.
  bool add(uint64_t block, BlockKind kind, bool on_duty, double duration_ns);
  /// Finished blocks, oldest first; the one under way is not among them.
  const std::deque<BlockMean>& blocks() const { return blocks_; }
  /// Continues from blocks kept elsewhere (a restarted manager). The training goes on, so no start-up is left out then.
  void restore(std::vector<BlockMean> blocks);
  double median_ns() const;  ///< of the last iterations; 0 before the first

 private:
  std::deque<BlockMean> blocks_;
  std::deque<double> recent_;  // durations, for the median
  BlockMean current_;
  uint64_t current_block_ = 0;
  bool open_ = false;
  size_t startup_left_ = kStartupIterations;
};

}  // namespace freeride::policy
