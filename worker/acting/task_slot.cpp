#include "acting/task_slot.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "freeride/base/clock.hpp"

namespace freeride::worker {
namespace {

using pages::load_acquire;
using pages::load_relaxed;

// Of the wall time since it paused, the share that a paused task may execute without being called a liar: its runner
// answers wakes.
constexpr int64_t kPausedShare = 100;

// From this part of the hang limit on, an overdue task is asked whether it starves.
constexpr int64_t kStarvationShare = 8;

// How long the supervisor may not know of a lease that was opened or taken back. Beyond the kernel's next tick, as
// Actor::kStartNs: after most leases nobody has to be told in the end, and then the timer has cost nothing.
constexpr int64_t kTellAfterNs = 5 * kNsPerMs;

int64_t sane(uint64_t ns) {
  return ns <= static_cast<uint64_t>(INT64_MAX / 4) ? static_cast<int64_t>(ns) : 0;
}

}  // namespace

int64_t SystemProcesses::cpu_ns(int pid) {
  // The clock id that clock_getcpuclockid() makes, without its extra system call.
  const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(pid) << 3) | 2u);
  timespec now{};
  if (clock_gettime(clock, &now) != 0) return -1;
  return now.tv_sec * kNsPerSec + now.tv_nsec;
}

Starvation SystemProcesses::starvation(int pid) {
  return starvation_of(pid);
}

void SystemProcesses::freeze_and_kill(int pid, int pidfd) {
  // A pidfd that polls readable has ended: its number may be somebody else's by now.
  pollfd ended{pidfd, POLLIN, 0};
  if (pid <= 1 || pidfd < 0 || poll(&ended, 1, 0) != 0) return;
  ::kill(-pid, SIGSTOP);
  syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, nullptr, 0);
  ::kill(-pid, SIGKILL);
  syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

TaskSlot::TaskSlot(std::shared_ptr<TaskSource> source, const TaskLimits& limits, Processes& processes)
    : source_(std::move(source)), limits_(limits), processes_(processes) {
  view.priority = source_->priority;
  view.when_idle = source_->when_idle;
  lease_.order = load_relaxed(source_->lease->order);
  lease_.grace_ns = static_cast<uint64_t>(limits.grace_ns);
  lease_.hang_ns = static_cast<uint64_t>(limits.hang_ns);
}

void TaskSlot::read() {
  const freeride_answer_page& answer = *source_->answer;
  cpu_seen_ns_.reset();
  sequence = load_acquire(answer.sequence);
  state = load_acquire(answer.state);
  transition = load_acquire(answer.transition);
  stops_ = stops_ || transition == FREERIDE_IN_STOP || state == FREERIDE_STATE_STOPPED;
  executing = !stops_ && (state == FREERIDE_STATE_RUNNING || transition != FREERIDE_IN_NONE);
  const int64_t predicted_ns = sane(load_relaxed(answer.predicted_ns));
  view.predicted_ns = predicted_ns != 0 ? predicted_ns : source_->predicted_ns;
  const bool by_bubbles = kind() == Kind::kNone || kind() == Kind::kBubble || kind() == Kind::kIdle;
  view.runnable = !killed_ && !stops_ && initialised() && by_bubbles && lease_.order == FREERIDE_ORDER_RUN;
  view.executing = (executing || stops_) && initialised() && by_bubbles && !killed_;
  if (unpaused_ && !watching_ && !executing) seen_paused();
  if (kind() == Kind::kBubble || kind() == Kind::kIdle) {
    // Paused again under a lease that is still open, or found no step that fits: the rest is for somebody else.
    const bool paused_again = !executing && load_relaxed(answer.lease_id) == lease_.lease_id &&
                              load_relaxed(answer.last_paused_ns) >= lease_.opened_ns;
    if (paused_again || (!executing && load_relaxed(answer.skipped) != skipped_at_open_)) {
      view.declined_ns = std::max(view.declined_ns, deadline_ns());
    }
  }
}

bool TaskSlot::take_state_change() {
  const uint32_t now = initialised() ? static_cast<uint32_t>(FREERIDE_STATE_PAUSED) : state;
  return std::exchange(told_state_, now) != now;
}

void TaskSlot::write(int64_t now_ns, int64_t tell_after_ns) {
  pages::write_lease(*source_->lease, lease_);
  pages::futex_wake(source_->lease->sequence, FREERIDE_WAKE_RUNNER);
  const int64_t tell_at_ns = now_ns + tell_after_ns;
  tell_at_ns_ = tell_at_ns_ == 0 ? tell_at_ns : std::min(tell_at_ns_, tell_at_ns);
  tell_supervisor(now_ns);
}

int64_t TaskSlot::tell_supervisor(int64_t now_ns) {
  // Paused without a lease: there is nothing to enforce.
  if (tell_at_ns_ == 0 || (kind() == Kind::kNone && !executing && lease_.order != FREERIDE_ORDER_STOP)) {
    return tell_at_ns_ = 0;
  }
  if (now_ns < tell_at_ns_) return tell_at_ns_;
  pages::futex_wake(source_->lease->sequence, FREERIDE_WAKE_SUPERVISOR);
  return tell_at_ns_ = 0;
}

bool TaskSlot::not_started() const {
  return (kind() == Kind::kBubble || kind() == Kind::kIdle) && !executing;
}

int64_t TaskSlot::cpu_ns() {
  if (!cpu_seen_ns_) cpu_seen_ns_ = limits_.by_cpu_clock && pid_ > 0 ? processes_.cpu_ns(pid_) : -1;
  return *cpu_seen_ns_;
}

void TaskSlot::set_order(uint32_t order, int64_t now_ns) {
  if (order == lease_.order) return;
  lease_.order = order;
  if (order == FREERIDE_ORDER_STOP) {
    // Stopping executes without a lease; its bound is the supervisor's and the main thread's.
    if (kind() != Kind::kNone) {
      lease_.kind = FREERIDE_LEASE_NONE;
      lease_.deadline_ns = static_cast<uint64_t>(now_ns);
    }
    seen_paused();
    overrunning_ = false;
  }
  write(now_ns, 0);
}

void TaskSlot::open(Kind kind, int64_t deadline_ns, int64_t begin_ns, int64_t now_ns) {
  const bool granted = kind == Kind::kInit || kind == Kind::kProfile || kind == Kind::kSave;
  note_first_step(now_ns);
  lease_.kind = static_cast<uint32_t>(kind);
  lease_.lease_id += 1;
  lease_.deadline_ns = static_cast<uint64_t>(deadline_ns);
  lease_.opened_ns = static_cast<uint64_t>(now_ns);
  lease_.begin_ns = static_cast<uint64_t>(begin_ns);
  if (kind == Kind::kSave) {
    save_wanted_ = false;
    source_->save_lease.store(lease_.lease_id);  // before the runner can answer it
  }
  write(now_ns, granted ? 0 : kTellAfterNs);
  skipped_at_open_ = load_relaxed(source_->answer->skipped);
  if (watching_) {
    watching_ = false;
    const int64_t until_ns = limits_.by_cpu_clock ? cpu_ns() : now_ns;
    const int64_t since_ns = limits_.by_cpu_clock ? cpu_at_end_ns_ : ended_ns_;
    if (until_ns >= 0 && since_ns >= 0) carried_ns_ += std::max<int64_t>(0, until_ns - since_ns);
  }
  if (granted) {
    granted_ = true;
    return;
  }
  if (kind == Kind::kBubble) source_->in_bubbles.store(true, std::memory_order_relaxed);
  source_->leases.fetch_add(1, std::memory_order_relaxed);
}

void TaskSlot::close(int64_t ended_ns, int64_t now_ns) {
  if (kind() == Kind::kNone) return;
  const int64_t end_ns = std::min(ended_ns, deadline_ns());
  lease_.kind = FREERIDE_LEASE_NONE;
  lease_.deadline_ns = static_cast<uint64_t>(now_ns);
  write(now_ns, kTellAfterNs);
  watch(end_ns, cpu_ns());
}

bool TaskSlot::wants_grant() const {
  const bool ordered = lease_.order == FREERIDE_ORDER_RUN || (init_paused_ && lease_.order == FREERIDE_ORDER_PAUSE);
  return !granted_ && !killed_ && pid_ > 0 && state == FREERIDE_STATE_CREATED && ordered;
}

bool TaskSlot::wants_save() const {
  return save_wanted_ && !killed_ && pid_ > 0 && state == FREERIDE_STATE_PAUSED && !executing && !watching_ &&
         !unpaused_ && kind() == Kind::kNone && lease_.order == FREERIDE_ORDER_PAUSE;
}

bool TaskSlot::grant_done() const {
  if (kind() == Kind::kSave)
    return transition == FREERIDE_IN_NONE && load_relaxed(source_->answer->saved_lease) == lease_.lease_id;
  return kind() == Kind::kInit && transition == FREERIDE_IN_NONE && state >= FREERIDE_STATE_PAUSED;
}

int64_t TaskSlot::in_steps_ns(int64_t now_ns) const {
  const freeride_answer_page& answer = *source_->answer;
  int64_t total_ns = 0;
  for (int tries = 0; tries < 3; ++tries) {
    const uint64_t steps = load_acquire(answer.steps);
    total_ns = sane(load_acquire(answer.step_ns));
    const int64_t since_ns = sane(load_acquire(answer.transition_ns));
    if (load_acquire(answer.transition) == FREERIDE_IN_STEP && since_ns < now_ns) total_ns += now_ns - since_ns;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (load_relaxed(answer.steps) == steps) break;
  }
  return total_ns;
}

void TaskSlot::enter_window(int64_t now_ns) {
  if (in_window_) return;
  in_window_ = true;
  steps_at_entry_ns_ = in_steps_ns(now_ns);
  cpu_at_entry_ns_ = cpu_ns();
  entered_ns_ = sane(lease_.opened_ns);
  side_begin_ns_ = side_end_ns_ = 0;
}

// The page has the first step of the latest lease only, and a window may have several.
void TaskSlot::note_first_step(int64_t now_ns) {
  if (!in_window_ || side_begin_ns_ != 0) return;
  const int64_t first_ns = sane(load_relaxed(source_->answer->first_step_ns));
  if (first_ns >= entered_ns_ && first_ns <= now_ns) side_begin_ns_ = first_ns;
}

int64_t TaskSlot::leave_window(int64_t end_ns, int64_t longest_ns) {
  note_first_step(end_ns);
  if (side_begin_ns_ > end_ns) side_begin_ns_ = 0;  // it was late: all of it is overrun
  if (side_begin_ns_ != 0 && !executing) {
    side_end_ns_ = std::clamp(sane(load_relaxed(source_->answer->last_paused_ns)), side_begin_ns_, end_ns);
  }
  in_window_ = false;
  const int64_t cpu_now_ns = cpu_ns();
  int64_t harvested_ns = in_steps_ns(end_ns) - steps_at_entry_ns_;
  // Where execution can be told from waiting, a step's time is not more than what was executed.
  if (cpu_now_ns >= 0 && cpu_at_entry_ns_ >= 0) {
    harvested_ns = std::min(harvested_ns, cpu_now_ns - cpu_at_entry_ns_);
  }
  harvested_ns = std::clamp<int64_t>(harvested_ns, 0, std::max<int64_t>(0, longest_ns));
  source_->harvested_ns.fetch_add(harvested_ns, std::memory_order_relaxed);
  overrunning_ = executing && lease_.order != FREERIDE_ORDER_STOP && !killed_;
  window_end_ns_ = end_ns;
  cpu_at_window_end_ns_ = cpu_now_ns;
  return harvested_ns;
}

int64_t TaskSlot::overrun(int64_t now_ns, bool next_window) {
  if (executing && !next_window && !killed_) return -1;
  overrunning_ = false;
  int64_t executed_ns = 0;
  const freeride_answer_page& answer = *source_->answer;
  if (killed_) {
    executed_ns = executed_at_kill_ns_;  // its clocks go with it
  } else if (limits_.by_cpu_clock) {
    const int64_t real_ns = cpu_ns();
    if (real_ns < 0 || cpu_at_window_end_ns_ < 0) return 0;  // it ended meanwhile
    // What it says is finer than our look, which is later; it is believed within what its CPU clock allows.
    const int64_t claimed_ns = sane(load_relaxed(answer.last_paused_cpu_ns));
    const bool credible = !executing && claimed_ns >= cpu_at_window_end_ns_ && claimed_ns <= real_ns;
    executed_ns = (credible ? claimed_ns : real_ns) - cpu_at_window_end_ns_;
  } else {
    const int64_t claimed_ns = sane(load_relaxed(answer.last_paused_ns));
    executed_ns = (executing ? now_ns : std::min(claimed_ns, now_ns)) - window_end_ns_;
  }
  executed_ns = std::max<int64_t>(0, executed_ns);
  source_->overrun_ns.fetch_add(executed_ns, std::memory_order_relaxed);
  return executed_ns;
}

void TaskSlot::watch(int64_t ended_ns, int64_t cpu_ns) {
  watching_ = true;
  ended_ns_ = ended_ns;
  cpu_at_end_ns_ = cpu_ns;
  ended_lease_ = lease_.lease_id;
  if (unpaused_) return;
  unpaused_ = true;
  first_end_ns_ = ended_ns;
  cpu_at_first_end_ns_ = cpu_ns;
  starved_at_first_end_ns_ = -1;
  carried_ns_ = 0;
}

void TaskSlot::seen_paused() {
  watching_ = unpaused_ = training_came_ = false;
  carried_ns_ = 0;
}

// Looked at only in a task that has been overdue for a while, since it costs some 10 us; what it waited before that
// counts as starved once it has come to an end, in the task's favour.
void TaskSlot::look_for_starvation(policy::OverrunSnapshot& snapshot) {
  if (!limits_.by_cpu_clock || !executing || snapshot.now_ns - first_end_ns_ < limits_.hang_ns / kStarvationShare)
    return;
  const Starvation starvation = processes_.starvation(pid_);
  if (starved_at_first_end_ns_ < 0) starved_at_first_end_ns_ = starvation.waited_ns;
  snapshot.starved_ns = starvation.waited_ns - starved_at_first_end_ns_;
  // One that has executed for the whole limit, if only under leases, has had its chance to pause.
  const bool executed_enough =
      cpu_at_first_end_ns_ >= 0 && snapshot.cpu_now_ns - cpu_at_first_end_ns_ > limits_.hang_ns;
  snapshot.wants_cpu = starvation.wants_cpu && !executed_enough;
}

// It has finished, and frees what it has: for as long as that takes, as after an order to stop.
bool TaskSlot::judge_stop(int64_t now_ns, int64_t& look_ns) {
  seen_paused();
  if (stops_since_ns_ == 0) stops_since_ns_ = now_ns;
  const int64_t until_ns = stops_since_ns_ + limits_.stop_ns;
  if (now_ns <= until_ns) {
    look_ns = look_ns == 0 ? until_ns + 1 : std::min(look_ns, until_ns + 1);
    return false;
  }
  const std::string patience = std::to_string(limits_.stop_ns / kNsPerMs) + " ms";
  kill("had not stopped " + patience + " after it had begun to", "stop " + patience);
  return true;
}

bool TaskSlot::judge(int64_t now_ns, int64_t& look_ns) {
  if (killed_) return false;
  if (stops_ && lease_.order != FREERIDE_ORDER_STOP) return judge_stop(now_ns, look_ns);
  if (!watching_) return false;
  policy::OverrunSnapshot snapshot;
  snapshot.lease_id = ended_lease_;
  snapshot.claims_paused = !executing;
  snapshot.by_cpu_clock = limits_.by_cpu_clock;
  snapshot.now_ns = now_ns;
  snapshot.cpu_now_ns = limits_.by_cpu_clock ? cpu_ns() : 0;
  snapshot.cpu_at_end_ns = cpu_at_end_ns_;
  if (snapshot.cpu_at_end_ns < 0 || snapshot.cpu_now_ns < 0) snapshot.cpu_at_end_ns = snapshot.cpu_now_ns;
  snapshot.cpu_at_end_ns -= carried_ns_;
  // On a GPU both limits are of wall time, and the one of execution is the shorter.
  snapshot.ended_ns = limits_.by_cpu_clock ? (executing ? first_end_ns_ : ended_ns_) : ended_ns_ - carried_ns_;
  snapshot.paused_ns = sane(load_relaxed(source_->answer->last_paused_ns));
  snapshot.grace_ns = limits_.grace_ns;
  snapshot.hang_ns = limits_.hang_ns;
  snapshot.cores = limits_.cores;
  look_for_starvation(snapshot);
  policy::OverrunDecision decision = policy::judge_overrun(snapshot);
  switch (decision.action) {
    case policy::OverrunAction::kFine:
      seen_paused();
      cpu_when_paused_ns_ = snapshot.cpu_now_ns;
      paused_at_ns_ = now_ns;
      return false;
    case policy::OverrunAction::kWait:
      look_ns = look_ns == 0 ? decision.look_at_ns : std::min(look_ns, decision.look_at_ns);
      return false;
    case policy::OverrunAction::kKill:
      executed_at_kill_ns_ = decision.executed_ns;
      kill(std::move(decision.reason), std::move(decision.limit));
      return true;
  }
  return false;
}

bool TaskSlot::audit(int64_t now_ns) {
  if (killed_ || stops_ || watching_ || kind() != Kind::kNone || !initialised() || lease_.order == FREERIDE_ORDER_STOP)
    return false;
  if (executing) {
    // It started under a lease that was taken back in the same moment, or without any.
    watch(now_ns, limits_.by_cpu_clock ? cpu_when_paused_ns_ : -1);
    int64_t ignored_ns = 0;
    return judge(now_ns, ignored_ns);
  }
  const int64_t cpu_now_ns = cpu_ns();
  if (cpu_now_ns < 0) return false;
  if (cpu_when_paused_ns_ < 0) {
    cpu_when_paused_ns_ = cpu_now_ns;
    paused_at_ns_ = now_ns;
    return false;
  }
  const int64_t executed_ns = cpu_now_ns - cpu_when_paused_ns_;
  if (executed_ns > limits_.grace_ns + (now_ns - paused_at_ns_) / kPausedShare) {
    kill("executed " + std::to_string(executed_ns / kNsPerMs) + " ms while it said that it was paused",
         "grace " + std::to_string(limits_.grace_ns / kNsPerMs) + " ms");
    return true;
  }
  return false;
}

void TaskSlot::kill(std::string reason, std::string limit) {
  processes_.freeze_and_kill(pid_, pidfd_ == nullptr ? -1 : pidfd_->get());
  killed_ = true;
  seen_paused();
  view.runnable = view.executing = false;
  reason_ = std::move(reason);
  limit_ = std::move(limit);
}

}  // namespace freeride::worker
