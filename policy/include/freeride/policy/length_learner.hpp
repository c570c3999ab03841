// How long each bubble of an iteration will be, learned from the last iterations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace freeride::policy {

/// What is known of one wait of an iteration. All 0: not enough samples yet. low <= mid <= high.
struct WaitLength {
  int64_t low_ns = 0;    ///< nearly all bubbles are longer
  int64_t mid_ns = 0;    ///< median
  int64_t high_ns = 0;   ///< few were longer
  uint32_t samples = 0;  ///< it was learned from
};

/// Learns the lengths of the waits of an iteration, each by its position, as quantiles of a short window. A mean would
/// not do: a lease that ends a little early wastes little, while one that ends late delays training. Single stalls (a
/// checkpoint, a garbage collection) must leave no trace.
///
/// Iterations with as many waits are of one schedule, and the last kSchedules of these are kept: one that comes back is
/// known at once. While several alternate, nobody knows which comes next: a wait is then as long as in the shortest of
/// them. A new number of waits is set aside once; from the second in a row on only its own lengths count. One wait is
/// dropped when its last kShiftSamples all lie outside what was learned before.
/// Pure: no clock, no I/O. Not thread-safe. Allocates only when the number of waits is a new one.
class LengthLearner {
 public:
  static constexpr size_t kWindow = 16;         ///< samples kept of each wait
  static constexpr size_t kLeastSamples = 3;    ///< before anything is said of a wait
  static constexpr size_t kShiftSamples = 3;    ///< in a row outside the range make a shift
  static constexpr size_t kSchedules = 4;       ///< kept, by their number of waits
  static constexpr uint64_t kAlternate = 16;    ///< iterations after which a schedule is expected no more
  static constexpr double kShiftFactor = 1.25;  ///< outside the range by this factor
  static constexpr int64_t kShiftLeastNs =
      50'000;  ///< and by at least this: short waits jitter by more than any factor
  /// The low quantile lies below the shortest recent bubbles by as much as these lie below the median. So regular
  /// bubbles are used to their end. These two are the most and the least of that margin.
  static constexpr double kLowMargin = 0.02;
  static constexpr int64_t kLeastLowMarginNs = 20'000;

  /// At most `most_waits` are learned; later ones of an iteration are ignored.
  explicit LengthLearner(size_t most_waits) : most_waits_(most_waits) {}

  /// One finished iteration; lengths_ns[i] is the length of wait i + 1. Negative ones count as 0. True when the
  /// schedule was found to have changed, so that at least one wait is learned anew. O(waits · kWindow).
  bool add_iteration(std::span<const int64_t> lengths_ns);

  /// Of wait `wait`, from 1; zeros for one that is unknown.
  WaitLength length(size_t wait) const;
  size_t waits() const;  ///< in an iteration; of several schedules that alternate, in the longest
  size_t most_waits() const { return most_waits_; }

 private:
  struct History {
    std::array<int64_t, kWindow> ring{};
    size_t used = 0, next = 0;
    WaitLength learned;
    int64_t least_ns = 0, most_ns = 0;  // of the ring, before the samples under suspicion
    size_t below = 0, above = 0;        // newest samples in a row outside that range
  };
  static bool add_sample(History& history, int64_t length_ns);
  static void learn(History& history);

  static constexpr uint64_t kUnexpected = 0;  // another has taken its place, until it comes back
  struct Schedule {
    std::vector<History> waits;
    uint64_t iterations = 0;
    uint64_t last = kUnexpected;  // iteration that was of it, from 1
  };
  bool is_known(const Schedule& schedule) const { return schedule.iterations >= kLeastSamples; }
  bool is_expected(const Schedule& schedule) const;
  Schedule& schedule_of(size_t count);

  size_t most_waits_;
  uint64_t iterations_ = 0;
  size_t count_ = 0;       // waits of the present schedule
  size_t last_count_ = 0;  // of the last iteration
  std::vector<Schedule> schedules_;
};

/// The paper's type of wait `wait` (from 1) of `waits` in a 1F1B schedule, by position alone. 'A' is the first wait of
/// an iteration (the pipeline fills, or drains behind the stage). 'B' is the wait for the first backward, 'C' one of
/// those between. 0: the number of waits does not fit 1F1B. For display only: nothing is decided by it.
char bubble_type(uint32_t stage, uint32_t stages, size_t waits, size_t wait);

}  // namespace freeride::policy
