// What a side task may execute while it has no lease. What it says of itself can only shorten that.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// What an answer page says of its task. Every pair of values of its state and transition is one of these.
enum class Claim {
  kCreating,   ///< SUBMITTED: the plugin is loaded and CreateSideTask runs
  kPaused,     ///< nothing executes
  kExecuting,  ///< RUNNING, or in a transition
  kStopping,   ///< in StopSideTask, or STOPPED
};

/// Where a task is in its life, for what it may execute without a lease. Forward only.
enum class Phase {
  kCreating,  ///< loading and CreateSideTask: wall time from the start of its process
  kLeased,    ///< nothing but the grace period after each lease
  kStopping,  ///< StopSideTask: Rights::stop_execution_ns(), within the wall time of a stop
};

struct RightsLimits {
  int64_t grace_ns = 0;
  int64_t stop_ns = 0;  ///< wall time of a stop
};

/// The one rule of what the answer page's word is worth, for one task. Every length comes from the reader's own clock,
/// from its own leases and orders, and from the CPU clock of the task's process, which it looks at.
///
/// A claim can leave a phase and never returns to one, so it brings no time back.
///
/// Creation is over with the first lease, whatever the page says.
///
/// A task that says that it is paused has no grace period left. What it executes until the next lease is charged, and
/// that lease does not forgive it. A hundredth of the wall time is taken off the charge: so much may answering wakes
/// take. Only going to sleep is free, however short the bubbles are.
///
/// A StopSideTask that nobody ordered may execute a tenth of a stop's wall time or the grace period, once in a life.
///
/// Pure. The worker and the supervisor each have one of every task. Not thread-safe.
class Rights {
 public:
  static constexpr int64_t kPausedShare = 100;    ///< of the wall time, what a paused task may execute
  static constexpr int64_t kUnorderedShare = 10;  ///< of a stop's wall time, what one that nobody ordered may execute

  static constexpr int64_t kToRestNs = 100'000;  ///< to go to sleep after each pause

  explicit Rights(const RightsLimits& limits) : limits_(limits) {}

  /// One look at the page. `leased`: it has had a lease. Returns what the claim counts as. A task that was created
  /// cannot claim to be created again, and a task that has begun to stop stays in that phase.
  Claim see(Claim claim, bool leased);
  Phase phase() const { return phase_; }

  /// It says that it is paused, from now on; `cpu_ns` < 0: its clock cannot be read.
  void rest(int64_t now_ns, int64_t cpu_ns);
  bool rests() const { return rest_cpu_ns_ >= 0; }
  int64_t rest_cpu_ns() const { return rest_cpu_ns_; }
  /// What it has executed since rest() or the last call is charged. Whether that is too much.
  bool charge(int64_t now_ns, int64_t cpu_ns);
  int64_t charged_ns() const { return charged_ns_; }
  /// A lease begins: what is executed from now on is charged no more.
  void wake(int64_t now_ns, int64_t cpu_ns);

  /// What a task in StopSideTask may execute without a lease; INT64_MAX: its wall time is the only limit.
  int64_t stop_execution_ns(bool ordered) const;

 private:
  RightsLimits limits_;
  Phase phase_ = Phase::kCreating;
  int64_t rest_cpu_ns_ = -1, rest_ns_ = 0, free_ns_ = 0;
  int64_t charged_ns_ = 0;
};

}  // namespace freeride::policy
