#include "acting/kill_watch.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/time.hpp"
#include "freeride/pages/names.hpp"

namespace freeride::worker {
namespace {

using pages::load_relaxed;

// Of the wall time since it paused, the share that a paused task may execute without being called a liar: its runner
// answers wakes.
constexpr int64_t kPausedShare = 100;

// From this part of the hang limit on, an overdue task is asked whether it starves.
constexpr int64_t kStarvationShare = 8;

int64_t earlier(int64_t a_ns, int64_t b_ns) {
  return a_ns == 0 ? b_ns : std::min(a_ns, b_ns);
}

}  // namespace

void KillWatch::lease_opened(int64_t now_ns) {
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
  watching_ = unpaused_ = training_came_ = false;
  carried_ns_ = 0;
}

// Looked at only in a task that has been overdue for a while, since it costs some 10 us; what it waited before that
// counts as starved once it has come to an end, in the task's favour.
void KillWatch::look_for_starvation(policy::OverrunSnapshot& snapshot) {
  if (!limits_.by_cpu_clock || !answers_.executing ||
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

// It has finished, and frees what it has: for as long as that takes, as after an order to stop.
bool KillWatch::judge_stop(int64_t now_ns, int64_t& look_ns) {
  forgive();
  if (stops_since_ns_ == 0) stops_since_ns_ = now_ns;
  const int64_t until_ns = stops_since_ns_ + limits_.stop_ns;
  if (now_ns <= until_ns) {
    look_ns = earlier(look_ns, until_ns + 1);
    return false;
  }
  const std::string patience = std::to_string(limits_.stop_ns / kNsPerMs) + " ms";
  kill(policy::Cause::kSlowTransition, "had not stopped " + patience + " after it had begun to", "stop " + patience);
  return true;
}

bool KillWatch::judge(int64_t now_ns, int64_t& look_ns) {
  if (killed_) return false;
  if (answers_.stops && lease_.order() != FREERIDE_ORDER_STOP) return judge_stop(now_ns, look_ns);
  if (!watching_) return false;
  policy::OverrunSnapshot snapshot;
  snapshot.lease_id = ended_lease_;
  snapshot.claims_paused = !answers_.executing;
  snapshot.by_cpu_clock = limits_.by_cpu_clock;
  snapshot.now_ns = now_ns;
  snapshot.cpu_now_ns = limits_.by_cpu_clock ? process_.cpu_ns() : 0;
  snapshot.cpu_at_end_ns = cpu_at_end_ns_;
  if (snapshot.cpu_at_end_ns < 0 || snapshot.cpu_now_ns < 0) snapshot.cpu_at_end_ns = snapshot.cpu_now_ns;
  snapshot.cpu_at_end_ns -= carried_ns_;
  // On a GPU both limits are of wall time, and the one of execution is the shorter.
  snapshot.ended_ns = limits_.by_cpu_clock ? (answers_.executing ? first_end_ns_ : ended_ns_) : ended_ns_ - carried_ns_;
  snapshot.paused_ns = sane(load_relaxed(answers_.page().last_paused_ns));
  snapshot.grace_ns = limits_.grace_ns;
  snapshot.hang_ns = limits_.hang_ns;
  snapshot.cores = limits_.cores;
  look_for_starvation(snapshot);
  policy::OverrunDecision decision = policy::judge_overrun(snapshot);
  switch (decision.action) {
    case policy::OverrunAction::kFine:
      forgive();
      cpu_when_paused_ns_ = snapshot.cpu_now_ns;
      paused_at_ns_ = now_ns;
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
  if (killed_ || answers_.stops || watching_ || lease_.kind() != policy::LeaseKind::kNone || !answers_.initialised() ||
      lease_.order() == FREERIDE_ORDER_STOP)
    return false;
  if (answers_.executing) {
    // It started under a lease that was taken back in the same moment, or without any.
    watch(now_ns, limits_.by_cpu_clock ? cpu_when_paused_ns_ : -1);
    int64_t ignored_ns = 0;
    return judge(now_ns, ignored_ns);
  }
  const int64_t cpu_now_ns = process_.cpu_ns();
  if (cpu_now_ns < 0) return false;
  if (cpu_when_paused_ns_ < 0) {
    cpu_when_paused_ns_ = cpu_now_ns;
    paused_at_ns_ = now_ns;
    return false;
  }
  const int64_t executed_ns = cpu_now_ns - cpu_when_paused_ns_;
  if (executed_ns <= limits_.grace_ns + (now_ns - paused_at_ns_) / kPausedShare) return false;
  kill(policy::Cause::kUnleased,
       "executed " + std::to_string(executed_ns / kNsPerMs) + " ms while it said that it was paused",
       "grace " + std::to_string(limits_.grace_ns / kNsPerMs) + " ms");
  return true;
}

void KillWatch::kill(policy::Cause cause, std::string message, std::string limit) {
  killed_ = true;
  if (process_.lives()) {  // else something else has ended it
    policy::Verdict& verdict = source_.killed_verdict;
    verdict.kind = policy::VerdictKind::kOverran;
    verdict.cause = cause;
    verdict.message = std::move(message);
    if (training_came_) {  // beside no training it had been given the device for itself
      verdict.kind = policy::VerdictKind::kEvicted;
      verdict.cause = policy::Cause::kTrainingCame;
      verdict.message = "a trainer came while it was profiled, and it " + verdict.message;
    }
    verdict.limit = std::move(limit);
    verdict.transition = pages::transition_name(answers_.transition);
    source_.killed.store(true, std::memory_order_release);
    process_.freeze_and_kill();
  }
  forgive();
}

}  // namespace freeride::worker
