#include "imperative.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"
#include "freeride/policy/profile_plan.hpp"
#include "limits.hpp"
#include "stop_signal.hpp"

namespace freeride::runner {

using Opening = Admission::Opening;

freeride_status Imperative::prepare() {
  const auto imperative = imperative_extension(parts_.task.table());
  if (imperative->prepare_gpu_workload == nullptr) return FREERIDE_OK;
  void* task = parts_.task.task();
  const auto status = workload_.prepare([task, prepare = imperative->prepare_gpu_workload] { return prepare(task); },
                                        [task, run = imperative->run_gpu_workload] { return run(task); });
  return status;
}

Next Imperative::run(const SeenLease& seen) {
  HeldLease& lease = parts_.lease;
  const Admission& admission = parts_.admission;
  const int64_t deadline_ns = as_time(seen.lease.deadline_ns);
  const Opening opening = admission.opening(lease.look(), deadline_ns, is_stuck());
  if (opening == Opening::kNone) {
    if (lease.is_fresh(seen.lease)) turn_.skip(seen.lease);
    return Next::kGoOn;
  }
  lease.take(seen);
  workload_.goes_on(lease.now_ns());
  if (turn_.begin() == Next::kEnded) return Next::kEnded;
  parts_.clock.begin(lease.now_ns());
  lease.use(lease.now_ns());
  parts_.answer.enter(FREERIDE_IN_STEP, lease.now_ns());
  const bool whole = opening == Opening::kOpen;
  const auto expect = [&] {
    workload_.expect_open_until(lease.held().lease_id, whole ? admission.close_at_ns(lease.deadline_ns()) : 0);
  };
  expect();
  if (opening != Opening::kRest) open_gate(opening == Opening::kOnce);
  parts_.answer.wake();
  for (;;) {
    const int64_t now_ns = lease.look();
    if (!lease.open()) {
      lease.taken_back();
      break;
    }
    expect();
    const int64_t until_ns = whole ? admission.close_at_ns(lease.deadline_ns()) : lease.deadline_ns();
    if (workload_.ended() || stop_requested() || now_ns >= until_ns || workload_.waits()) break;
    workload_.wait(lease.word(), lease.sequence(), until_ns);
  }
  return end_turn(opening);
}

// The workload runs until enough of it has been seen.
Next Imperative::profile(int64_t until_ns) {
  HeldLease& lease = parts_.lease;
  parts_.clock.begin(lease.now_ns());
  until_ns = std::min(until_ns, lease.now_ns() + policy::kEnoughProfileNs);
  parts_.answer.enter(FREERIDE_IN_STEP, lease.now_ns());
  open_gate(false);
  bool taken_back = false;
  while (!workload_.ended() && !stop_requested() && SteadyClock::now() < until_ns) {
    taken_back = !lease.open();
    if (taken_back) break;
    workload_.wait(lease.word(), lease.sequence(), until_ns);
  }
  const Next next = end_turn(Opening::kOpen);
  return next == Next::kGoOn && !taken_back ? Next::kDone : next;
}

// Holds the workload at its gate, pauses; says what came of a work that is done.
Next Imperative::end_turn(Opening opening) {
  HeldLease& lease = parts_.lease;
  Admission& admission = parts_.admission;
  lease.look();
  const bool once = opening == Opening::kOnce;
  const int64_t begin_ns = once ? parts_.clock.begun_ns() : lease.now_ns();
  const int64_t room_ns = once ? lease.deadline_ns() - begin_ns : INT64_MAX;
  // Until the lease's end it may come to its gate; where that was taken back, somewhat longer.
  const bool stuck = is_stuck() || workload_.is_cut();
  workload_.close(std::max(lease.deadline_ns(), lease.now_ns() + admission.patience_ns(stuck)));
  stuck_ = !workload_.waits() && !workload_.ended();
  stuck_at_ = workload_.arrivals();
  parts_.answer.sees_end(lease.look());
  workload_.stands(lease.now_ns());
  const int64_t taught_ns = parts_.clock.end(lease.now_ns());
  if (parts_.record != nullptr) parts_.record->step(taught_ns, taught_ns);
  parts_.progress.workload_ran();
  if (turn_.end() == Next::kEnded) return Next::kEnded;
  if (!stuck) admission.pause_took(SteadyClock::now() - begin_ns, room_ns);
  parts_.answer.predicts(admission.predicted_ns());
  if (!workload_.ended()) return parts_.job.profile && parts_.progress.seen_enough(true) ? Next::kDone : Next::kGoOn;
  const freeride_status status = workload_.status();
  if (status != FREERIDE_OK && status != FREERIDE_FINISHED) return parts_.endings.failed(FREERIDE_IN_STEP, status);
  parts_.progress.workload_ended();
  return Next::kDone;
}

void Imperative::hold(int64_t until_ns) {
  if (started()) workload_.close(until_ns);
}

void Imperative::abandon() {
  if (!started()) return;
  parts_.answer.enter(FREERIDE_IN_STOP, SteadyClock::now());
  workload_.abandon(kAbandonMs);
}

void Imperative::stand_still(uint32_t sequence) {
  if (thaw_ != nullptr) freeze(*thaw_, parts_.lease.word(), sequence);
}

void Imperative::open_gate(bool once) {
  const auto imperative = imperative_extension(parts_.task.table());
  workload_.open([task = parts_.task.task(), run = imperative->run_gpu_workload] { return run(task); }, once);
}

}  // namespace freeride::runner
