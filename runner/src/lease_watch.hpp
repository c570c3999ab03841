// The supervisor's judgement, free of system calls: what it saw on the pages and the clocks → wait until when, or kill
// with which verdict.
#pragma once

#include <cstdint>
#include <optional>

#include "freeride/base/starvation.hpp"
#include "freeride/pages/mapping.hpp"
#include "freeride/policy/rights.hpp"
#include "freeride/policy/verdict.hpp"
#include "limits.hpp"

namespace freeride::runner {

/// One look. The answer page is the plugin's to write: what it says is worth what policy::Rights says.
struct Look {
  bool readable = false;  ///< the lease page gave a consistent copy
  pages::Lease lease;     ///< when readable
  uint32_t sequence = 0;  ///< of the lease page
  uint32_t state = 0;     ///< of the answer page, as are the next two
  uint32_t transition = 0;
  int64_t last_paused_ns = 0;
  int64_t now_ns = 0;
  int64_t cpu_ns = 0;           ///< CPU clock of the plugin's process
  Starvation starvation;        ///< of the plugin's process; needed only when it has not paused
  int64_t orders_until_ns = 0;  ///< of the lease page, on now_ns's clock; 0: orders do not expire
  int64_t orders_end_ns = 0;    ///< the same
};

struct WatchDecision {
  std::optional<policy::Verdict> kill;
  int64_t look_at_ns = 0;  ///< when to look again though nothing was heard; INT64_MAX: not needed
};

/// Enforces the lease page over the plugin's process by itself, whether the worker lives or not. Rules: while a lease
/// is open, until its deadline; after it has ended (deadline, revocation, an unreadable page, expired orders: see
/// policy/orders), policy::judge_overrun with the grace_ns and hang_ns that came with it; wall-time limits for what
/// runs without a lease (Limits). Not thread-safe.
class LeaseWatch {
 public:
  LeaseWatch(const Limits& limits, bool by_cpu_clock, uint32_t cores, int64_t started_ns);

  WatchDecision look(const Look& look);

  /// The task has been told to stop (SIGTERM to the supervisor).
  void stop_requested(int64_t now_ns);
  /// Somebody has told it to: the lease page, as of the last look, or stop_requested().
  bool stop_ordered() const { return ordered_; }

 private:
  void follow_lease(const Look& look, bool open);
  policy::Verdict verdict_of(const Look& look, policy::Verdict verdict) const;
  std::optional<policy::Verdict> check_stop(const Look& look, int64_t& look_at_ns);
  std::optional<policy::Verdict> check_stop_of_itself(const Look& look, int64_t& look_at_ns);
  WatchDecision after_end(const Look& look, int64_t look_at_ns);

  Limits limits_;
  bool by_cpu_clock_;
  uint32_t cores_;
  int64_t started_ns_;
  policy::Rights rights_;
  policy::Claim claim_ = policy::Claim::kCreating;
  int64_t stopping_since_ns_ = -1;
  bool ordered_ = false;      ///< to stop, by the lease page or by a signal
  bool had_steps_ = false;    ///< has had a lease for steps
  int64_t cpu_at_stop_ = -1;  ///< of a stop that nobody ordered; -1: not judged yet
  bool open_ = false;
  bool ended_ = false;    ///< a lease has ended: lease_id_ to hang_ns_ say which and when
  bool paused_ = false;   ///< and the task has been seen paused since
  bool expired_ = false;  ///< it was one for a transition, and ended with the manager's orders
  uint64_t lease_id_ = 0;
  int64_t ended_ns_ = 0;
  int64_t cpu_at_end_ns_ = 0;
  int64_t starved_at_end_ns_ = -1;  ///< -1: not looked at since
  int64_t grace_ns_ = kDefaultGraceNs;
  int64_t hang_ns_ = kDefaultHangNs;
  int64_t deadline_ns_ = 0;  ///< of the open lease
  uint32_t sequence_ = 0;    ///< of the last look
  int64_t idle_look_ns_ = kFirstIdleLookNs;
};

}  // namespace freeride::runner
