#include "acting/kill_watch.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/time.hpp"
#include "freeride/pages/names.hpp"

namespace freeride::worker {
namespace {

using pages::load_relaxed;

// Of the wall time in which a process is stopped, the share that it may execute: nothing, but clocks are not exact.
constexpr int64_t kStoppedShare = 50;

// From this part of the hang limit on, an overdue task is asked whether it starves.
constexpr int64_t kStarvationShare = 8;

int64_t earlier(int64_t a_ns, int64_t b_ns) {
  return a_ns == 0 ? b_ns : std::min(a_ns, b_ns);
}

}  // namespace

void KillWatch::lease_opens(int64_t now_ns) {
  if (rights_.rests()) rights_.wake(now_ns, process_.cpu_ns());
  if (!watching_) return;
  watching_ = false;
  const int64_t until_ns = limits_.by_cpu_clock ? process_.cpu_ns() : now_ns;
  const int64_t since_ns = limits_.by_cpu_clock ? cpu_at_end_ns_ : ended_ns_;
  if (until_ns >= 0 && since_ns >= 0) carried_ns_ += std::max<int64_t>(0, until_ns - since_ns);
}

void KillWatch::lease_ended(int64_t ended_ns) {
  watch(ended_ns, process_.cpu_ns());
}

void KillWatch::watch(int64_t ended_ns, int64_t cpu_ns) {
  watching_ = true;
  ended_ns_ = ended_ns;
  cpu_at_end_ns_ = cpu_ns;
  ended_lease_ = lease_.id();
  if (unpaused_) return;
  unpaused_ = true;
  first_end_ns_ = ended_ns;
  cpu_at_first_end_ns_ = cpu_ns;
  starved_at_first_end_ns_ = -1;
  carried_ns_ = 0;
}

void KillWatch::forgive() {
  watching_ = unpaused_ = training_came_ = orders_expired_ = false;
  carried_ns_ = 0;
}

// Looked at only in a task that has been overdue for a while, since it costs some 10 us; what it waited before that
// counts as starved once it has come to an end, in the task's favour.
void KillWatch::look_for_starvation(policy::OverrunSnapshot& snapshot) {
  if (!limits_.by_cpu_clock || snapshot.claims_paused ||
      snapshot.now_ns - first_end_ns_ < limits_.hang_ns / kStarvationShare)
    return;
  const Starvation starvation = process_.starvation();
  if (starved_at_first_end_ns_ < 0) starved_at_first_end_ns_ = starvation.waited_ns;
  snapshot.starved_ns = starvation.waited_ns - starved_at_first_end_ns_;
  // One that has executed for the whole limit, if only under leases, has had its chance to pause.
  const bool executed_enough =
      cpu_at_first_end_ns_ >= 0 && snapshot.cpu_now_ns - cpu_at_first_end_ns_ > limits_.hang_ns;
  snapshot.wants_cpu = starvation.wants_cpu && !executed_enough;
}

// It has finished, as it says, and frees what it has. The wall time is that of an order to stop, the execution less.
bool KillWatch::judge_stop(int64_t now_ns, int64_t& look_ns) {
  const int64_t cpu_now_ns = limits_.by_cpu_clock ? process_.cpu_ns() : -1;
  const bool leased = lease_.kind() != policy::LeaseKind::kNone;
  if (stops_since_ns_ == 0) stops_since_ns_ = now_ns;
  // From the last lease's end on, where it has not paused since.
  if (cpu_at_stop_ns_ < 0 && !leased) cpu_at_stop_ns_ = watching_ && cpu_at_end_ns_ >= 0 ? cpu_at_end_ns_ : cpu_now_ns;
  forgive();
  const int64_t until_ns = stops_since_ns_ + limits_.stop_ns;
  const std::string patience = std::to_string(limits_.stop_ns / kNsPerMs) + " ms";
  if (now_ns > until_ns) {
    kill(policy::Cause::kSlowTransition, "had not stopped " + patience + " after it had begun to", "stop " + patience);
    return true;
  }
  look_ns = earlier(look_ns, until_ns + 1);
  if (leased || cpu_now_ns < 0 || cpu_at_stop_ns_ < 0) return false;
  const int64_t most_ns = rights_.stop_execution_ns(false), executed_ns = cpu_now_ns - cpu_at_stop_ns_;
  if (executed_ns > most_ns) {
    kill(policy::Cause::kSlowTransition,
         "executed " + milliseconds(executed_ns) + " in StopSideTask, which nobody had ordered",
         "stop, of itself: " + milliseconds(most_ns) + " of execution");
    return true;
  }
  const int64_t rate = std::max<int64_t>(1, limits_.cores);
  look_ns = earlier(look_ns, now_ns + std::max((most_ns - executed_ns) / rate, kNsPerMs) + 1);
  return false;
}

bool KillWatch::judge(int64_t now_ns, int64_t& look_ns) {
  if (killed_) return false;
  if (claim_ == policy::Claim::kStopping && lease_.order() != FREERIDE_ORDER_STOP) return judge_stop(now_ns, look_ns);
  if (!watching_) return false;
  const bool executing = claim_ == policy::Claim::kExecuting;
  policy::OverrunSnapshot snapshot;
  snapshot.lease_id = ended_lease_;
  snapshot.claims_paused = !executing;
  snapshot.by_cpu_clock = limits_.by_cpu_clock;
  snapshot.now_ns = now_ns;
  snapshot.cpu_now_ns = limits_.by_cpu_clock ? process_.cpu_ns() : 0;
  snapshot.cpu_at_end_ns = cpu_at_end_ns_;
  if (snapshot.cpu_at_end_ns < 0 || snapshot.cpu_now_ns < 0) snapshot.cpu_at_end_ns = snapshot.cpu_now_ns;
  snapshot.cpu_at_end_ns -= carried_ns_;
  // On a GPU both limits are of wall time, and the one of execution is the shorter.
  snapshot.ended_ns = limits_.by_cpu_clock ? (executing ? first_end_ns_ : ended_ns_) : ended_ns_ - carried_ns_;
  snapshot.paused_ns = sane(load_relaxed(answers_.page().last_paused_ns));
  snapshot.grace_ns = limits_.grace_ns;
  snapshot.hang_ns = limits_.hang_ns;
  snapshot.cores = limits_.cores;
  look_for_starvation(snapshot);
  policy::OverrunDecision decision = policy::judge_overrun(snapshot);
  switch (decision.action) {
    case policy::OverrunAction::kFine:
      forgive();
      rights_.rest(now_ns, limits_.by_cpu_clock ? snapshot.cpu_now_ns : -1);
      return false;
    case policy::OverrunAction::kWait:
      look_ns = earlier(look_ns, decision.look_at_ns);
      return false;
    case policy::OverrunAction::kKill:
      executed_at_kill_ns_ = decision.executed_ns;
      kill(decision.cause, std::move(decision.reason), std::move(decision.limit));
      return true;
  }
  return false;
}

bool KillWatch::audit(int64_t now_ns) {
  // While it is created its supervisor's limit counts, and while it stops judge() does.
  if (killed_ || rights_.phase() != policy::Phase::kLeased || watching_ || lease_.kind() != policy::LeaseKind::kNone ||
      lease_.order() == FREERIDE_ORDER_STOP)
    return false;
  if (claim_ == policy::Claim::kExecuting) {
    // It started under a lease that was taken back in the same moment, or without any.
    watch(now_ns, limits_.by_cpu_clock ? rights_.rest_cpu_ns() : -1);
    int64_t ignored_ns = 0;
    return judge(now_ns, ignored_ns);
  }
  if (!rights_.rests()) {
    rights_.rest(now_ns, process_.cpu_ns());
    return false;
  }
  if (!rights_.charge(now_ns, process_.cpu_ns())) return false;
  kill(policy::Cause::kUnleased, "executed " + milliseconds(rights_.charged_ns()) + " while it said that it was paused",
       "grace " + milliseconds(limits_.grace_ns));
  return true;
}

bool KillWatch::may_stop() const {
  const bool rests = answers_.state == FREERIDE_STATE_CREATED || answers_.state == FREERIDE_STATE_PAUSED;
  return limits_.stops && rests && answers_.transition == FREERIDE_IN_NONE && !answers_.executing && seen_paused() &&
         !killed_ && lease_.kind() == policy::LeaseKind::kNone && lease_.order() != FREERIDE_ORDER_STOP;
}

bool KillWatch::judge_stops(int64_t now_ns) {
  if (killed_ || !limits_.stops) return false;
  const TaskProcess::Stops stops = process_.stops(now_ns);
  if (stops.executed_ns <= limits_.grace_ns + stops.length_ns / kStoppedShare) return false;
  kill(policy::Cause::kUnleased,
       "executed " + std::to_string(stops.executed_ns / kNsPerMs) + " ms while its process was stopped between leases",
       "grace " + std::to_string(limits_.grace_ns / kNsPerMs) + " ms");
  return true;
}

void KillWatch::kill(policy::Cause cause, std::string message, std::string limit) {
  policy::Verdict verdict{policy::VerdictKind::kOverran, cause, std::move(message)};
  verdict.limit = std::move(limit);
  verdict.transition = pages::transition_name(answers_.transition);
  if (lease_.order() == FREERIDE_ORDER_END) policy::excuse_end(verdict);
  kill(std::move(verdict));
}

void KillWatch::kill(policy::Verdict seen) {
  killed_ = true;
  if (process_.lives()) {  // else something else has ended it
    policy::Verdict& verdict = source_.killed_verdict;
    verdict = std::move(seen);
    if (training_came_) {  // beside no training it had been given the device for itself
      verdict.kind = policy::VerdictKind::kEvicted;
      verdict.cause = policy::Cause::kTrainingCame;
      verdict.message = "a trainer came while it was profiled, and it " + verdict.message;
    }
    if (orders_expired_) {  // no fault of its own
      verdict.kind = policy::VerdictKind::kLost;
      verdict.cause = policy::Cause::kExpired;
      verdict.message = "its worker had not heard from the manager for too long, so its lease was taken back, and it " +
                        verdict.message;
    }
    verdict.transition = pages::transition_name(answers_.transition);
    // Its word, which excuses no execution that a CPU clock has shown.
    const bool shown = limits_.by_cpu_clock &&
                       (verdict.cause == policy::Cause::kLeaseEnd || verdict.cause == policy::Cause::kUnleased);
    source_.failed_before_kill = !shown && load_relaxed(answers_.page().result) != 0;
    source_.killed.store(true, std::memory_order_release);
    process_.freeze_and_kill();
  }
  forgive();
}

}  // namespace freeride::worker
