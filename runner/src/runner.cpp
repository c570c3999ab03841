#include "runner.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/clock.hpp"
#include "limits.hpp"
#include "plugin_threads.hpp"
#include "saved_state.hpp"
#include "stop_signal.hpp"

namespace freeride::runner {

using policy::Cause;
using policy::VerdictKind;

Runner::Runner(Job job, const freeride_lease_page& lease, freeride_answer_page& answer, int last_words_fd, Thaw* thaw)
    : parts_(std::move(job), lease, answer, last_words_fd),
      turn_(parts_),
      yields_(parts_, turn_),
      steps_(parts_, turn_, yields_),
      imperative_(parts_, turn_, thaw) {
  Host& host = parts_.task.host();
  Workload& workload = imperative_.workload();
  host.on_yield([this, &workload] { return workload.is_this_thread() ? workload.pass_piece() : yields_.pass(); });
  host.on_yield_queued([this, &workload](const Host::Wait& wait) {
    return workload.is_this_thread() ? workload.pass_queued(wait) : yields_.pass_queued(wait);
  });
  host.on_gate([&workload] { return workload.is_this_thread() ? workload.pass() : FREERIDE_OK; });
  parts_.answer.predicts(parts_.admission.predicted_ns());
}

void Runner::run() {
  Next next = parts_.endings.guarded([this] { return create(); });
  if (next == Next::kEnded) return;
  install_stop_signal();
  parts_.answer.set_state(FREERIDE_STATE_CREATED);
  parts_.endings.guarded([this] { return loop(); });
}

Next Runner::create() {
  const Job& job = parts_.job;
  parts_.answer.enter(FREERIDE_IN_LOAD, SteadyClock::now());
  threads_before_ = count_threads();
  auto plugin = open_plugin(job.plugin, job.params);
  if (!plugin.ok()) return parts_.endings.rejected(Cause::kPlugin, plugin.error());
  bool imperative = false;
  auto params = resolve_params(*plugin, job.params, &imperative);
  if (!params.ok()) return parts_.endings.rejected(Cause::kParameter, params.error());
  parts_.task.use(*plugin, imperative);
  if (imperative) parts_.admission.use_gate();
  const freeride_status status = parts_.task.create(job, *params);
  return status == FREERIDE_OK ? Next::kGoOn : parts_.endings.failed(FREERIDE_IN_CREATE, status);
}

Next Runner::loop() {
  for (;;) {
    const SeenLease seen = parts_.lease.read();
    if (stop_requested()) return stop(VerdictKind::kStopped, Cause::kOrder, "stopped in good order");
    Next next = seen.readable ? act(seen) : Next::kGoOn;
    if (next == Next::kDone)
      next = stop(VerdictKind::kFinished, parts_.progress.cause(), parts_.progress.reason(parts_.task.imperative()));
    if (next == Next::kEnded) return next;
    if (stop_requested()) continue;
    if (imperative_.started()) imperative_.stand_still(seen.sequence);
    wait_for_change(parts_.lease.word(), seen.sequence, FREERIDE_WAKE_RUNNER);
  }
}

Next Runner::act(const SeenLease& seen) {
  const pages::Lease& lease = seen.lease;
  if (lease.order == FREERIDE_ORDER_STOP) return stop(VerdictKind::kStopped, Cause::kOrder, "stopped in good order");
  if (!seen.open(SteadyClock::now())) return Next::kGoOn;
  const uint32_t state = parts_.answer.state();
  switch (lease.kind) {
    case FREERIDE_LEASE_INIT:
      return state == FREERIDE_STATE_CREATED ? init() : Next::kGoOn;
    case FREERIDE_LEASE_PROFILE:
      return state == FREERIDE_STATE_CREATED && parts_.job.profile ? profile(seen) : Next::kGoOn;
    case FREERIDE_LEASE_SAVE:
      return state == FREERIDE_STATE_PAUSED && parts_.answer.saved_lease() != lease.lease_id ? save(lease)
                                                                                             : Next::kGoOn;
    case FREERIDE_LEASE_BUBBLE:
    case FREERIDE_LEASE_IDLE:
      if (state != FREERIDE_STATE_PAUSED || lease.order != FREERIDE_ORDER_RUN) return Next::kGoOn;
      return parts_.task.imperative() ? imperative_.run(seen) : steps_.run(seen);
    default:
      return Next::kGoOn;
  }
}

Next Runner::init() {
  const int64_t begin_ns = SteadyClock::now();
  freeride_status status = parts_.task.init(begin_ns);
  if (status == FREERIDE_OK && parts_.task.imperative()) status = imperative_.prepare();
  if (status != FREERIDE_OK) return parts_.endings.failed(FREERIDE_IN_INIT, status);
  install_stop_signal();
  if (restore() == Next::kEnded) return Next::kEnded;
  const int64_t end_ns = SteadyClock::now();
  parts_.answer.initialised(end_ns - begin_ns);
  parts_.clock.pause(end_ns);
  parts_.answer.set_state(FREERIDE_STATE_PAUSED);
  return Next::kGoOn;
}

Next Runner::restore() {
  if (parts_.job.state_in_fd < 0) return Next::kGoOn;
  PluginTask& task = parts_.task;
  auto read = ask_for_saved_state(parts_.job.state_in_fd);
  if (!read.ok()) return parts_.endings.failed(FREERIDE_IN_RESTORE, FREERIDE_ERROR, read.error().text());
  if (!read->has_value()) return Next::kGoOn;
  const SavedState& saved = **read;
  parts_.progress.go_on_from(saved.steps);
  if (!saved.present) return Next::kGoOn;
  const auto state = state_extension(task.table());
  if (!state || saved.plugin != task.table().name) {
    const std::string why = !state ? ", and this content keeps none" : ", another plugin";
    task.host().log(FREERIDE_LOG_INFO, ("starts from zero: the state was saved by " + saved.plugin + why).c_str());
    return Next::kGoOn;
  }
  parts_.answer.enter(FREERIDE_IN_RESTORE, SteadyClock::now());
  const freeride_status status = state->restore(task.task(), saved.version, saved.bytes.data(), saved.bytes.size());
  if (status != FREERIDE_OK) return parts_.endings.failed(FREERIDE_IN_RESTORE, status);
  install_stop_signal();
  parts_.answer.restored();
  task.host().log(FREERIDE_LOG_INFO,
                  ("went on from a saved state of " + std::to_string(saved.bytes.size()) + " bytes").c_str());
  return Next::kGoOn;
}

// Whatever comes of it, the task is as it was: PAUSED.
Next Runner::save(const pages::Lease& lease) {
  PluginTask& task = parts_.task;
  SavedState saved;
  saved.lease_id = lease.lease_id;
  saved.steps = parts_.progress.steps();
  parts_.answer.enter(FREERIDE_IN_SAVE, SteadyClock::now());
  imperative_.hold(as_time(lease.deadline_ns));
  if (const auto state = state_extension(task.table())) {
    saved.present = true;
    saved.plugin = task.table().name;
    saved.version = state->version;
    saved.status = collect_state(*state, task.task(), saved.bytes);
    if (saved.status != FREERIDE_OK) {
      saved.bytes = task.host().take_reason();
      if (saved.bytes.empty()) saved.bytes = status_text(saved.status);
    }
  }
  if (parts_.job.state_out_fd >= 0) write_saved_state(parts_.job.state_out_fd, saved);
  parts_.clock.pause(SteadyClock::now());
  parts_.answer.saved(lease.lease_id);
  parts_.answer.leave();
  parts_.answer.wake();
  return Next::kGoOn;
}

// With no training on the device: at once, under one lease. When that is taken back because a training has come, the
// rest is for its bubbles.
Next Runner::profile(const SeenLease& seen) {
  if (init() == Next::kEnded) return Next::kEnded;
  parts_.lease.take(seen);
  if (!parts_.lease.open()) return Next::kGoOn;
  const int64_t begin_ns = parts_.lease.look();
  const int64_t room_ns = as_time(seen.lease.deadline_ns) - begin_ns;
  const int64_t until_ns = begin_ns + std::max<int64_t>(0, room_ns) / kProfileShareDivisor;
  if (turn_.begin() == Next::kEnded) return Next::kEnded;
  return parts_.task.imperative() ? imperative_.profile(until_ns) : steps_.profile(until_ns);
}

Next Runner::stop(VerdictKind kind, Cause cause, const std::string& reason) {
  imperative_.abandon();
  const int64_t begin_ns = SteadyClock::now();
  const freeride_status status = parts_.task.stop(begin_ns);
  if (status != FREERIDE_OK) return parts_.endings.failed(FREERIDE_IN_STOP, status);
  if (parts_.record != nullptr && parts_.job.state_out_fd >= 0)
    parts_.record->write(parts_.job.state_out_fd, SteadyClock::now() - begin_ns);
  return parts_.endings.in_order(kind, cause, reason, threads_before_);
}

}  // namespace freeride::runner
