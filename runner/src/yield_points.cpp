#include "yield_points.hpp"

#include "freeride/base/clock.hpp"
#include "stop_signal.hpp"

namespace freeride::runner {

freeride_status YieldPoints::pass() {
  if (!in_step_) return FREERIDE_OK;
  return given_up_ ? static_cast<freeride_status>(FREERIDE_ABANDONED) : end_of_piece(true);
}

freeride_status YieldPoints::pass_queued(const Host::Wait& wait) {
  const bool steps = in_step_ && !given_up_;
  Admission& admission = parts_.admission;
  if (steps && admission.take_ahead()) {
    if (const auto status = wait(false); status != FREERIDE_OK) return status;
    piece_ends();
    admission.is_behind();
  }
  const bool open = !steps || may_go_on();
  // A profile wants each piece's time by itself.
  const bool one_by_one = !steps || !open || parts_.record != nullptr;
  if (!one_by_one && admission.may_queue(parts_.clock.begun_ns(), parts_.lease.deadline_ns())) {
    parts_.lease.use(parts_.lease.now_ns());
    admission.queued();
    return FREERIDE_OK;
  }
  if (const auto status = wait(true); status != FREERIDE_OK) return status;
  return steps ? end_of_piece(open) : pass();
}

// `open`: as far as the caller knows. A lease that is gone is seen once, since the page's sequence has been read then.
freeride_status YieldPoints::end_of_piece(bool open) {
  HeldLease& lease = parts_.lease;
  piece_ends();
  open = open && may_go_on();
  if (lease.kind() == FREERIDE_LEASE_PROFILE) return open ? static_cast<freeride_status>(FREERIDE_OK) : give_up();
  if (open && parts_.admission.may_begin(lease.room_ns(), lease.fresh())) {
    lease.use(lease.now_ns());
    parts_.admission.begins(lease.room_ns());
    return FREERIDE_OK;
  }
  parts_.answer.sees_end(lease.now_ns());
  return this->wait();
}

// Counts the piece that has just ended.
void YieldPoints::piece_ends() {
  const int64_t end_ns = parts_.lease.look();
  parts_.answer.next_piece(end_ns);
  const int64_t taught_ns = parts_.clock.end(end_ns);
  if (parts_.record != nullptr) parts_.record->piece(taught_ns);
  parts_.admission.piece_done(taught_ns);
  parts_.answer.predicts(parts_.admission.predicted_ns());
  turn_.tell();
}

bool YieldPoints::may_go_on() {
  return parts_.lease.open() && !stop_requested();
}

freeride_status YieldPoints::give_up() {
  given_up_ = true;
  return FREERIDE_ABANDONED;
}

// PAUSED as after PauseSideTask, but in the middle of a step: nothing executes until a lease has room for the next
// piece.
freeride_status YieldPoints::wait() {
  HeldLease& lease = parts_.lease;
  parts_.clock.pause(SteadyClock::now());
  parts_.answer.set_state(FREERIDE_STATE_PAUSED);
  for (;;) {
    const SeenLease seen = lease.read();
    const int64_t now_ns = lease.look();
    const bool open = seen.open(now_ns);
    const bool stops = seen.readable && seen.lease.order == FREERIDE_ORDER_STOP;
    const bool saves =
        open && seen.lease.kind == FREERIDE_LEASE_SAVE && parts_.answer.saved_lease() != seen.lease.lease_id;
    if (stop_requested() || stops || saves) {
      // What it still executes to get out of the step is judged as a step's.
      parts_.answer.enter(FREERIDE_IN_STEP, now_ns);
      return give_up();
    }
    if (open && resume(seen)) return FREERIDE_OK;
    if (!stop_requested()) wait_for_change(lease.word(), seen.sequence, FREERIDE_WAKE_RUNNER);
  }
}

// Whether the step goes on under the lease that was seen.
bool YieldPoints::resume(const SeenLease& seen) {
  HeldLease& lease = parts_.lease;
  const bool bubble = seen.lease.kind == FREERIDE_LEASE_BUBBLE || seen.lease.kind == FREERIDE_LEASE_IDLE;
  if (!bubble || seen.lease.order != FREERIDE_ORDER_RUN) return false;
  parts_.admission.sees(seen.lease);
  const bool first = lease.is_fresh(seen.lease);
  if (!parts_.admission.may_begin(as_time(seen.lease.deadline_ns) - lease.now_ns(), first)) {
    if (first) turn_.skip(seen.lease);
    return false;
  }
  lease.take(seen);
  turn_.goes_on();
  lease.use(lease.now_ns());
  parts_.admission.begins(lease.room_ns());
  parts_.clock.begin(lease.now_ns());
  parts_.answer.step_goes_on(lease.now_ns());
  return true;
}

}  // namespace freeride::runner
