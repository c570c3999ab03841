#include "steps.hpp"

#include "stop_signal.hpp"

namespace freeride::runner {

Next Steps::run(const SeenLease& seen) {
  HeldLease& lease = parts_.lease;
  const Admission& admission = parts_.admission;
  lease.look();
  parts_.admission.sees(seen.lease);
  const bool first_look = lease.is_fresh(seen.lease);
  if (!admission.may_begin(as_time(seen.lease.deadline_ns) - lease.now_ns(), first_look)) {
    if (first_look) turn_.skip(seen.lease);
    return Next::kGoOn;
  }
  lease.take(seen);
  if (turn_.begin() == Next::kEnded) return Next::kEnded;
  while (lease.open() && !stop_requested()) {
    const bool first = lease.fresh();
    if (!admission.may_begin(lease.room_ns(), first)) {
      if (first) turn_.skip(lease.held());
      break;
    }
    if (step() == Next::kEnded) return Next::kEnded;
    if (parts_.progress.done() || yields_.given_up()) break;
    if (turn_.tell()) lease.look();
  }
  parts_.answer.sees_end(lease.now_ns());
  if (turn_.end() == Next::kEnded) return Next::kEnded;
  return parts_.progress.done() ? Next::kDone : Next::kGoOn;
}

Next Steps::profile(int64_t until_ns) {
  HeldLease& lease = parts_.lease;
  const Progress& progress = parts_.progress;
  bool taken_back = false;
  while (!progress.done() && lease.now_ns() < until_ns && !stop_requested() && !taken_back) {
    taken_back = !lease.open();
    if (taken_back) break;
    if (step() == Next::kEnded) return Next::kEnded;
    taken_back = yields_.given_up();
  }
  if (turn_.end() == Next::kEnded) return Next::kEnded;
  return taken_back && !progress.done() ? Next::kGoOn : Next::kDone;
}

// The step begins when the one before it has ended: one reading of the clock less.
Next Steps::step() {
  HeldLease& lease = parts_.lease;
  const int64_t begin_ns = lease.now_ns();
  lease.use(begin_ns);
  parts_.clock.begin(begin_ns);
  yields_.step_begins();
  parts_.admission.begins(lease.room_ns());
  const freeride_status status = parts_.task.step(begin_ns);
  yields_.step_ended();
  lease.look();
  if (yields_.given_up() && status == FREERIDE_ABANDONED) {
    parts_.admission.step_given_up();
    if (parts_.record != nullptr) parts_.record->abandoned();
    parts_.clock.give_up();
    return Next::kGoOn;
  }
  if (status != FREERIDE_OK && status != FREERIDE_FINISHED) return parts_.endings.failed(FREERIDE_IN_STEP, status);

  const int64_t taught_ns = parts_.clock.end(lease.now_ns());
  const int64_t step_ns = parts_.admission.executed_ns() + taught_ns;
  if (parts_.record != nullptr) parts_.record->step(step_ns, taught_ns);
  parts_.admission.step_done(taught_ns);
  parts_.answer.predicts(parts_.admission.predicted_ns());
  parts_.answer.count_step();
  parts_.answer.leave();
  parts_.progress.step_made(status, step_ns);
  return Next::kGoOn;
}

}  // namespace freeride::runner
