#include "lease_watch.hpp"

#include <algorithm>

#include "freeride/base/time.hpp"
#include "freeride/pages/names.hpp"
#include "freeride/policy/overrun.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::Verdict;
using policy::VerdictKind;

constexpr int64_t kNever = INT64_MAX;

// The worker's acting thread looks at a lease's deadline, extends or closes it; the supervisor looks this much later,
// since it is the second line, and on a CPU device would take the core from the side task's pause or from training.
constexpr int64_t kAfterWorkerNs = 10 * kNsPerMs;

int64_t later(int64_t time_ns, int64_t by_ns) {
  return by_ns > kNever - time_ns ? kNever : time_ns + by_ns;
}

bool expired(const Look& look) {
  return look.orders_until_ns != 0 && look.orders_until_ns <= look.now_ns;
}

bool is_open(const Look& look) {
  const pages::Lease& lease = look.lease;
  if (!look.readable || lease.lease_id == 0 || lease.order == FREERIDE_ORDER_STOP) return false;
  if (as_time(lease.deadline_ns) <= look.now_ns || expired(look)) return false;
  switch (lease.kind) {
    case FREERIDE_LEASE_BUBBLE:
    case FREERIDE_LEASE_IDLE:
      return lease.order == FREERIDE_ORDER_RUN;
    case FREERIDE_LEASE_INIT:
    case FREERIDE_LEASE_PROFILE:
    case FREERIDE_LEASE_SAVE:
      return true;
    default:
      return false;
  }
}

policy::Claim claim_of(const Look& look) {
  using policy::Claim;
  if (look.transition == FREERIDE_IN_STOP || look.state == FREERIDE_STATE_STOPPED) return Claim::kStopping;
  if (look.state == FREERIDE_STATE_SUBMITTED) return Claim::kCreating;
  const bool paused = look.transition == FREERIDE_IN_NONE && look.state != FREERIDE_STATE_RUNNING;
  return paused ? Claim::kPaused : Claim::kExecuting;
}

// Where it was, for the verdict. Between two steps it is the steps that went on too long; executing while paused is
// PauseSideTask's fault.
const char* place(const Look& look) {
  if (look.transition != FREERIDE_IN_NONE) return pages::transition_name(look.transition);
  return pages::transition_name(look.state == FREERIDE_STATE_RUNNING ? FREERIDE_IN_STEP : FREERIDE_IN_PAUSE);
}

Verdict overran(Cause cause, const char* transition, std::string message, std::string limit) {
  Verdict verdict;
  verdict.kind = VerdictKind::kOverran;
  verdict.cause = cause;
  verdict.transition = transition;
  verdict.message = std::move(message);
  verdict.limit = std::move(limit);
  return verdict;
}

// No fault of the task's.
Verdict orders_expired(const std::string& then) {
  return {VerdictKind::kLost, Cause::kExpired, "its worker had not heard from the manager for too long, " + then};
}

}  // namespace

LeaseWatch::LeaseWatch(const Limits& limits, bool by_cpu_clock, uint32_t cores, int64_t started_ns)
    : limits_(limits),
      by_cpu_clock_(by_cpu_clock),
      cores_(cores),
      started_ns_(started_ns),
      rights_({kDefaultGraceNs, limits.stop_ms * kNsPerMs}) {}

void LeaseWatch::stop_requested(int64_t now_ns) {
  ordered_ = true;
  if (stopping_since_ns_ < 0) stopping_since_ns_ = now_ns;
}

std::optional<Verdict> LeaseWatch::check_stop(const Look& look, int64_t& look_at_ns) {
  if (look.readable && look.lease.order == FREERIDE_ORDER_STOP) stop_requested(look.now_ns);
  if (claim_ == policy::Claim::kStopping && stopping_since_ns_ < 0) stopping_since_ns_ = look.now_ns;
  if (stopping_since_ns_ < 0) return std::nullopt;
  const int64_t until_ns = later(stopping_since_ns_, limits_.stop_ms * kNsPerMs);
  if (look.now_ns > until_ns) {
    const std::string limit = "stop " + std::to_string(limits_.stop_ms) + " ms";
    return verdict_of(look,
                      overran(Cause::kSlowTransition, place(look),
                              "had not stopped " + std::to_string(limits_.stop_ms) + " ms after it was to", limit));
  }
  look_at_ns = std::min(look_at_ns, later(until_ns, 1));
  return std::nullopt;
}

// It has finished, as it says, and nobody has ordered it: what it executes from its lease's end on is bounded.
std::optional<Verdict> LeaseWatch::check_stop_of_itself(const Look& look, int64_t& look_at_ns) {
  if (ordered_ || !by_cpu_clock_) return std::nullopt;
  if (cpu_at_stop_ < 0) cpu_at_stop_ = ended_ ? cpu_at_end_ns_ : look.cpu_ns;
  const int64_t most_ns = rights_.stop_execution_ns(false), executed_ns = look.cpu_ns - cpu_at_stop_;
  if (executed_ns > most_ns) {
    return overran(Cause::kSlowTransition, pages::transition_name(FREERIDE_IN_STOP),
                   "executed " + milliseconds(executed_ns) + " in StopSideTask, which nobody had ordered",
                   "stop, of itself: " + milliseconds(most_ns) + " of execution");
  }
  const int64_t rest_ns = (most_ns - executed_ns) / std::max<uint32_t>(1, cores_);
  look_at_ns = std::min(look_at_ns, later(look.now_ns, std::max(rest_ns, kNsPerMs) + 1));
  return std::nullopt;
}

// What comes before the first step cannot be broken off, and may take longer than anybody waits for a stop: whoever was
// to stop meanwhile has been stopped, if by force. So has a program that was told to end.
Verdict LeaseWatch::verdict_of(const Look& look, Verdict verdict) const {
  const bool starts = look.transition == FREERIDE_IN_LOAD || look.transition == FREERIDE_IN_CREATE ||
                      look.transition == FREERIDE_IN_INIT || look.transition == FREERIDE_IN_RESTORE;
  const bool ends = look.readable && look.lease.order == FREERIDE_ORDER_END;
  if (ends || (ordered_ && starts && !had_steps_)) policy::excuse_end(verdict);
  return verdict;
}

void LeaseWatch::follow_lease(const Look& look, bool open) {
  const pages::Lease& lease = look.lease;
  // A page may be cleared together with its lease: limits of nothing are no limits.
  const bool has_limits = look.readable && lease.hang_ns != 0;
  if (has_limits) {
    grace_ns_ = as_time(lease.grace_ns);
    hang_ns_ = as_time(lease.hang_ns);
  }
  // Two changes of the page (the sequence grows by 2 with each) can be a lease that opened and closed unseen, another
  // lease id is one that did: what was executed under it must not count as past the end of the one before, but from now
  // on it counts.
  const bool other_lease = look.readable && lease.lease_id != 0 && lease.lease_id != lease_id_;
  // And without any lease seen yet (the page may be unreadable from the first look on), it counts from the first look.
  const bool first = !open_ && !ended_ && rights_.phase() != policy::Phase::kCreating;
  const bool missed_one = !open && (first || other_lease || (ended_ && look.sequence - sequence_ >= 4));
  if (open) {
    deadline_ns_ = as_time(lease.deadline_ns);
    if (look.orders_until_ns != 0) deadline_ns_ = std::min(deadline_ns_, look.orders_until_ns);
    ended_ = paused_ = expired_ = false;
  } else if (open_ || missed_one) {
    ended_ = true;
    paused_ = false;
    const bool for_steps = lease.kind == FREERIDE_LEASE_BUBBLE || lease.kind == FREERIDE_LEASE_IDLE;
    expired_ = open_ && expired(look) && !for_steps;
    ended_ns_ = open_ && !missed_one ? std::min(look.now_ns, deadline_ns_) : look.now_ns;
    cpu_at_end_ns_ = look.cpu_ns;
    starved_at_end_ns_ = -1;
  }
  if (open || open_ || missed_one) idle_look_ns_ = kFirstIdleLookNs;
  if (other_lease) lease_id_ = lease.lease_id;
  open_ = open;
  sequence_ = look.sequence;
}

WatchDecision LeaseWatch::after_end(const Look& look, int64_t look_at_ns) {
  policy::OverrunSnapshot snapshot;
  snapshot.lease_id = lease_id_;
  snapshot.claims_paused = claim_ == policy::Claim::kPaused;
  snapshot.by_cpu_clock = by_cpu_clock_;
  snapshot.now_ns = look.now_ns;
  snapshot.cpu_now_ns = look.cpu_ns;
  // One that had paused in the middle of a step has to get out of it before it can stop: that counts from the order on,
  // not from the end of a lease that it has long left.
  snapshot.ended_ns = paused_ ? std::max(ended_ns_, stopping_since_ns_) : ended_ns_;
  snapshot.cpu_at_end_ns = cpu_at_end_ns_;
  snapshot.paused_ns = look.last_paused_ns;
  snapshot.grace_ns = grace_ns_;
  snapshot.hang_ns = hang_ns_;
  if (!snapshot.claims_paused) {
    if (starved_at_end_ns_ < 0) starved_at_end_ns_ = look.starvation.waited_ns;
    snapshot.starved_ns = look.starvation.waited_ns - starved_at_end_ns_;
    snapshot.wants_cpu = look.starvation.wants_cpu;
  }
  snapshot.cores = cores_;
  const policy::OverrunDecision decision = policy::judge_overrun(snapshot);
  switch (decision.action) {
    case policy::OverrunAction::kKill:
      if (expired_) return {orders_expired("so its lease was taken back, and it " + decision.reason), 0};
      return {verdict_of(look, overran(decision.cause, place(look), decision.reason, decision.limit)), 0};
    case policy::OverrunAction::kWait:
      return {std::nullopt, std::min(look_at_ns, decision.look_at_ns)};
    case policy::OverrunAction::kFine:
      paused_ = true;
      break;
  }
  // Only a CPU clock can show that it executes though it said otherwise.
  if (!by_cpu_clock_) return {std::nullopt, look_at_ns};
  const int64_t idle_at_ns = later(look.now_ns, idle_look_ns_);
  idle_look_ns_ = std::min(idle_look_ns_ * 2, kLastIdleLookNs);
  return {std::nullopt, std::min(look_at_ns, idle_at_ns)};
}

WatchDecision LeaseWatch::look(const Look& look) {
  int64_t look_at_ns = kNever;
  const bool open = is_open(look);
  const bool for_steps = look.lease.kind == FREERIDE_LEASE_BUBBLE || look.lease.kind == FREERIDE_LEASE_IDLE;
  had_steps_ = had_steps_ || (open && for_steps);
  claim_ = rights_.see(claim_of(look), look.readable && look.lease.lease_id != 0);
  follow_lease(look, open);
  if (auto kill = check_stop(look, look_at_ns)) return {std::move(kill), 0};
  if (look.orders_end_ns != 0) {
    if (look.orders_end_ns <= look.now_ns) return {orders_expired("so it was ended"), 0};
    look_at_ns = std::min(look_at_ns, look.orders_end_ns);
  }

  if (rights_.phase() == policy::Phase::kCreating) {
    const int64_t until_ns = later(started_ns_, limits_.create_ms * kNsPerMs);
    if (look.now_ns > until_ns) {
      const std::string limit = "create " + std::to_string(limits_.create_ms) + " ms";
      return {overran(Cause::kSlowTransition, place(look),
                      "was not created " + std::to_string(limits_.create_ms) + " ms after its start", limit),
              0};
    }
    return {std::nullopt, std::min(look_at_ns, later(until_ns, 1))};
  }
  if (open) return {std::nullopt, std::min(look_at_ns, later(deadline_ns_, kAfterWorkerNs))};
  // In StopSideTask its own limit counts: it is called when a lease has just ended, and takes as long as it must.
  // So until the process's end: what StopSideTask has executed is not executed past the lease.
  if (claim_ == policy::Claim::kStopping) {
    if (auto kill = check_stop_of_itself(look, look_at_ns)) return {std::move(kill), 0};
    return {std::nullopt, look_at_ns};
  }
  if (!ended_) return {std::nullopt, look_at_ns};
  return after_end(look, look_at_ns);
}

}  // namespace freeride::runner
