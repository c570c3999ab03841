#include "endings.hpp"

#include <utility>

#include "last_words.hpp"
#include "plugin_threads.hpp"

namespace freeride::runner {

using policy::Cause;
using policy::VerdictKind;

std::string status_text(freeride_status status) {
  switch (status) {
    case FREERIDE_ERROR:
      return "failed without saying why";
    case FREERIDE_BAD_PARAMETER:
      return "a parameter's value makes no sense";
    case FREERIDE_OUT_OF_MEMORY:
      return "out of memory";
    case FREERIDE_UNAVAILABLE:
      return "something it needs is not there now; trying again later can succeed";
    default:
      return "returned status " + std::to_string(status) + ", which means nothing there";
  }
}

Next Endings::failed(uint32_t transition, freeride_status status, std::string reason) {
  answer_.failed(status);
  if (reason.empty()) reason = task_.host().take_reason();
  if (reason.empty()) reason = status_text(status);
  if (status == FREERIDE_OUT_OF_MEMORY) {
    say(VerdictKind::kOutOfMemory, Cause::kNoMemory, transition, reason);
  } else if (status == FREERIDE_BAD_PARAMETER && transition == FREERIDE_IN_CREATE) {
    say(VerdictKind::kRejected, Cause::kParameter, transition, reason);
  } else {
    say(VerdictKind::kFailed, Cause::kTransition, transition, reason);
  }
  // Without prejudice only here: after a failed step nothing is known of the plugin's state.
  if (transition == FREERIDE_IN_INIT || transition == FREERIDE_IN_RESTORE || transition == FREERIDE_IN_STOP)
    task_.destroy();
  return Next::kEnded;
}

Next Endings::threw(const char* what, bool out_of_memory) {
  answer_.failed(out_of_memory ? FREERIDE_OUT_OF_MEMORY : FREERIDE_ERROR);
  say(out_of_memory ? VerdictKind::kOutOfMemory : VerdictKind::kFailed,
      out_of_memory ? Cause::kNoMemory : Cause::kTransition, answer_.transition(), std::string("threw ") + what);
  return Next::kEnded;
}

Next Endings::rejected(Cause cause, const Error& error) {
  say(VerdictKind::kRejected, cause, FREERIDE_IN_NONE, error.text());
  return Next::kEnded;
}

Next Endings::in_order(VerdictKind kind, Cause cause, const std::string& reason, uint32_t threads_before) {
  const uint32_t threads = count_threads();
  if (threads > threads_before) {
    threads_left_ = threads - threads_before;
    threads_awake_ = count_awake_threads();
    task_.host().log(FREERIDE_LOG_WARN,
                     (std::to_string(threads_left_) + " thread(s) of the plugin outlived StopSideTask").c_str());
  }
  say(kind, cause, FREERIDE_IN_NONE, reason);
  // Still "in StopSideTask", and so under its bound, until the process has ended.
  task_.destroy();
  answer_.set_state(FREERIDE_STATE_STOPPED);
  return Next::kEnded;
}

void Endings::say(VerdictKind kind, Cause cause, uint32_t transition, const std::string& reason) {
  if (std::exchange(said_, true)) return;
  LastWords words = last_words(kind, cause, transition, reason.c_str());
  words.threads_left = threads_left_;
  words.threads_awake = threads_awake_;
  words.step_p50_ns = admission_.step_quantile_ns(0.5);
  words.step_p90_ns = admission_.step_quantile_ns(0.9);
  words.step_max_ns = admission_.step_quantile_ns(1.0);
  answer_.message(reason);
  write_last_words(last_words_fd_, words);
}

}  // namespace freeride::runner
