// Whether a side task's next step fits the rest of a lease, by the durations of its recent steps: the paper's
// program-directed limit.
#pragma once

#include <array>
#include <cstdint>

namespace freeride::policy {

/// Learns one task's step durations and admits steps by them. The prediction is a high quantile of a window of recent
/// steps plus a margin. Every rank of a training waits for the unluckiest bubble, so the tail matters more than the
/// middle. The margin is as wide as the quantile lies above the median, so regular steps fill a bubble. While
/// nothing is known, the first step of a lease is admitted, and no second one before the first was recorded.
///
/// It never starves a task for ever. After `patience` leases in a row in which nothing fitted, the prediction decays
/// until a step is tried: from the quantile to the median, to the minimum, then by halves. A try that turns out to have
/// been wrong doubles the patience (up to kMostPatience).
///
/// Once `enough` steps were seen, or a profile has seen them, a try below the minimum costs training as much as the
/// step takes past the lease. So it is paid for: every iteration of training saves up kSavedPerIterationNs, and the
/// prediction is shortened by the savings. The first try is therefore made in the longest bubble, when the savings
/// cover what the step would take past it. Over time tries cost no more than the savings of an iteration. Each wrong
/// try makes the next one twice as dear. If nobody tells iterations, a try below the minimum comes kRareTry leases
/// later.
///
/// A profile is hearsay: the first try that is right ends it, and what was seen here is all that counts.
///
/// Constant time and memory per call, no allocation. Not thread-safe: the runner's main thread owns it.
class StepFit {
 public:
  static constexpr uint32_t kWindow = 32;
  static constexpr uint32_t kMostPatience = 1024;
  static constexpr uint32_t kRareTry = 128;  ///< seldom enough to be outside of the 99th percentile
  static constexpr int64_t kSavedPerIterationNs = 1'000'000;
  static constexpr int64_t kMostSavedNs = 10'000'000'000;

  struct Options {
    double quantile = 0.9;
    double most_margin = 0.05;   ///< of the quantile; taken whole while the window is less than half full
    int64_t margin_ns = 20'000;  ///< added: entering a step, noticing its end
    uint32_t patience = 4;       ///< skipped leases in a row before the prediction decays
    uint32_t enough = 8;         ///< steps that show how short one can be
    bool keeps_trying = false;   ///< after a try that was right, without patience, until the prediction fits again
  };

  StepFit() : StepFit(Options()) {}
  explicit StepFit(const Options& options);

  /// So many iterations of training have passed since this was last said. `most_ns`: what a try may risk at most, which
  /// is less than what a task is killed for.
  void save_up(uint64_t iterations, int64_t most_ns);
  /// A step begins that has `room_ns`: of the record that follows.
  void begins(int64_t room_ns) { room_ns_ = room_ns; }
  /// A step has taken `duration_ns`. Negative durations count as 0. A try was wrong if it took longer than the room
  /// that it had when it began. If nobody has said the room, it was wrong if it took longer than predicted.
  void record(int64_t duration_ns);
  /// As above, but a try was wrong if it took longer than `room_ns`. INT64_MAX: it was none, it fitted by full_ns().
  void record(int64_t duration_ns, int64_t room_ns);

  /// What a profile knows stands for one step, and for `enough` of them: it has seen many.
  void seed(int64_t duration_ns);
  /// As above, what is known of the same step under other circumstances, which has to be something.
  void seed(const StepFit& other);

  /// May a step start that has `remaining_ns` until its lease's deadline? `first` = no step has run under this lease
  /// yet.
  bool fits(int64_t remaining_ns, bool first) const;

  /// What the recent steps say that the next one takes, margin included, without decay; 0 = not known.
  int64_t full_ns() const { return full_ns_; }

  /// A lease ended, or was given up, without a step having fitted.
  void lease_skipped();

  /// What the next step is expected to take, margin and decay included, ns; 0 = not known.
  int64_t predicted_ns() const { return predicted_ns_; }

  /// The quantile `q` in [0, 1] of the window, without margin or decay; 0 when it is empty. For reports.
  int64_t quantile_ns(double q) const;
  uint32_t samples() const { return count_; }

 private:
  void predict();
  void judge_try(int64_t over_ns);
  int64_t below_minimum(int64_t shortest_ns, uint32_t below) const;
  uint32_t wait() const;
  bool tries() const { return skipped_ >= wait(); }

  Options options_;
  std::array<int64_t, kWindow> recent_{};  ///< ring, in order of time
  std::array<int64_t, kWindow> sorted_{};  ///< the same values, ascending
  uint32_t count_ = 0;
  uint32_t next_ = 0;
  uint32_t seen_ = 0;      ///< steps that were seen here or by a profile, up to `enough`
  uint32_t skipped_ = 0;   ///< leases skipped in a row
  uint32_t patience_ = 0;  ///< present patience: grows when a try was wrong
  bool hearsay_ = false;   ///< the window holds what a profile says, and nothing that was seen here
  bool saves_ = false;     ///< iterations are told
  int64_t saved_ns_ = 0;   ///< for tries; less than 0: owed
  int64_t most_try_ns_ = 0;
  int64_t room_ns_ = 0;  ///< of the present step; 0: not told
  int64_t full_ns_ = 0;  ///< prediction before decay
  int64_t predicted_ns_ = 0;
};

}  // namespace freeride::policy
