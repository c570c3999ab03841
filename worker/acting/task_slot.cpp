#include "acting/task_slot.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/time.hpp"

namespace freeride::worker {

using pages::load_relaxed;
using policy::LeaseKind;

TaskSlot::TaskSlot(std::shared_ptr<TaskSource> shared, const TaskLimits& limits, Processes& processes)
    : source(std::move(shared)),
      supervised(*source, processes),
      process(source->program ? supervised : processes, limits.by_cpu_clock),
      lease(*source, answers, limits.grace_ns, limits.hang_ns),
      kills(*source, answers, lease, process, limits),
      harvest(*source, answers, process, limits.by_cpu_clock),
      grace_ns_(limits.grace_ns) {
  view.priority = source->priority;
  view.when_idle = source->when_idle;
}

void TaskSlot::read(int64_t suspended_ns) {
  const auto until_ns = static_cast<int64_t>(load_relaxed(source->lease->orders_until_ns));
  view.orders_until_ns = until_ns == 0 ? 0 : std::max<int64_t>(1, until_ns - suspended_ns);
  process.look();
  answers.read();
  kills.look();
  const int64_t predicted_ns = sane(load_relaxed(answers.page().predicted_ns));
  view.predicted_ns = predicted_ns != 0 ? predicted_ns : source->predicted_ns;
  const bool lives = !kills.killed() && answers.initialised() && !policy::is_own(lease.kind());
  view.runnable = lives && !answers.stops && lease.order() == FREERIDE_ORDER_RUN;
  // One that was ordered to stop has limits of its own for that, and nobody waits for it.
  view.executing = lives && lease.order() != FREERIDE_ORDER_STOP && (answers.executing || answers.stops);
  if (lease.given_back()) view.declined_ns = std::max(view.declined_ns, lease.deadline_ns());
  view_own();
}

void TaskSlot::view_own() {
  const bool may = !kills.killed() && process.known();
  view.wants = may ? lease.wanted(kills.seen_paused()) : LeaseKind::kNone;
  view.holds = policy::is_own(lease.kind()) ? lease.kind() : LeaseKind::kNone;
  if (view.holds == LeaseKind::kNone) return;
  view.holds_until_ns = lease.deadline_ns();
  view.init_done = answers.initialised();
  view.done = lease.own_done() || kills.killed();
}

void TaskSlot::set_order(uint32_t order, int64_t now_ns) {
  if (order == FREERIDE_ORDER_STOP) process.go_on(now_ns);
  if (!lease.set_order(order, now_ns)) return;
  if (order == FREERIDE_ORDER_RUN) why.begin_anew();
  if (order != FREERIDE_ORDER_STOP) return;
  // Stopping executes without a lease; its bound is the supervisor's and the main thread's.
  kills.forgive();
  harvest.stop_measuring();
}

void TaskSlot::open(LeaseKind kind, int64_t deadline_ns, int64_t begin_ns, int64_t now_ns) {
  harvest.note_first_step(now_ns);
  process.go_on(now_ns);
  suspect = true;
  // The clocks first: the task may execute before this thread does again.
  kills.lease_opens(now_ns);
  if (policy::is_own(kind)) host_cpu_at_own_ns_ = process.host_cpu_ns();
  lease.open(kind, deadline_ns, begin_ns, now_ns);
  if (policy::is_own(kind)) {
    view_own();
  } else {
    why.lease_opened(deadline_ns - now_ns, now_ns);
  }
}

void TaskSlot::close(int64_t ended_ns, int64_t now_ns) {
  if (lease.kind() == LeaseKind::kNone) return;
  const int64_t end_ns = std::min(ended_ns, lease.deadline_ns());
  const int64_t host_cpu_ns = policy::is_own(lease.kind()) ? process.host_cpu_ns() : -1;
  const bool taken_up = host_cpu_ns >= 0 && host_cpu_at_own_ns_ >= 0 && host_cpu_ns - host_cpu_at_own_ns_ > grace_ns_;
  lease.close(now_ns, taken_up);
  kills.lease_ended(end_ns);
  view_own();
}

bool TaskSlot::judge(int64_t now_ns, bool audit, int64_t& look_ns) {
  if (!kills.judge(now_ns, look_ns) && !(audit && (kills.audit(now_ns) || kills.judge_stops(now_ns)))) {
    if (kills.may_stop()) process.stop(now_ns);
    process.look_stopped(now_ns);
    const int64_t held_ns = process.look_stopped_at();
    if (held_ns != 0 && (look_ns == 0 || held_ns < look_ns)) look_ns = held_ns;
    return false;
  }
  view.runnable = view.executing = false;
  return true;
}

bool TaskSlot::in_transition() const {
  if (!process.known()) return false;
  // Not by its word: what it claims for ever would leave every held-out iteration out of I.
  return kills.killed() || lease.order() == FREERIDE_ORDER_STOP || policy::is_own(lease.kind()) ||
         kills.phase() != policy::Phase::kLeased;
}

int64_t TaskSlot::leave_window(int64_t end_ns, int64_t longest_ns) {
  const bool measure = lease.order() != FREERIDE_ORDER_STOP && !kills.killed();
  return harvest.leave_window(end_ns, longest_ns, measure);
}

int64_t TaskSlot::overrun(int64_t now_ns, bool next_window) {
  if (kills.killed()) return harvest.overrun_of_killed(kills.executed_at_kill_ns());
  return harvest.overrun(now_ns, next_window);
}

}  // namespace freeride::worker
