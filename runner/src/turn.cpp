#include "turn.hpp"

#include "freeride/base/clock.hpp"

namespace freeride::runner {

Next Turn::begin() {
  HeldLease& lease = parts_.lease;
  const int64_t begin_ns = lease.now_ns();
  const freeride_status status = parts_.task.start(begin_ns);
  if (status != FREERIDE_OK) return parts_.endings.failed(FREERIDE_IN_START, status);
  parts_.answer.set_state(FREERIDE_STATE_RUNNING);
  lease.look();
  if (parts_.record != nullptr) parts_.record->start(lease.now_ns() - begin_ns);
  told_ = false;
  return Next::kGoOn;
}

Next Turn::end() {
  const int64_t begin_ns = parts_.lease.now_ns();
  const freeride_status status = parts_.task.pause(begin_ns);
  if (status != FREERIDE_OK) return parts_.endings.failed(FREERIDE_IN_PAUSE, status);
  const int64_t end_ns = SteadyClock::now();
  if (parts_.record != nullptr) parts_.record->pause(end_ns - begin_ns);
  parts_.clock.pause(end_ns);
  parts_.answer.set_state(FREERIDE_STATE_PAUSED);
  return Next::kGoOn;
}

void Turn::skip(const pages::Lease& lease) {
  if (std::exchange(last_skipped_, lease.lease_id) == lease.lease_id) return;
  parts_.admission.lease_skipped();
  parts_.answer.works_under(lease.lease_id);
  parts_.answer.predicts(parts_.admission.predicted_ns());
  parts_.answer.skipped();
  parts_.answer.wake();
}

}  // namespace freeride::runner
