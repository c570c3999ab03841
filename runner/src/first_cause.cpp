#include "first_cause.hpp"

#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include "freeride/pages/names.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::Verdict;
using policy::VerdictKind;

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  std::string text = "signal " + std::to_string(signal);
  if (name != nullptr) text += std::string(" (SIG") + name + ")";
  return text;
}

// Of a process that ended by itself.
Verdict of_status(int status, const std::string& transition) {
  Verdict verdict;
  verdict.transition = transition;
  const std::string in = transition.empty() ? "" : " in " + transition;
  if (WIFSIGNALED(status)) {
    verdict.kind = VerdictKind::kCrashed;
    verdict.signal = WTERMSIG(status);
    verdict.cause = verdict.signal == SIGSYS ? Cause::kForbiddenCall : Cause::kSignal;
    verdict.message = "killed by " + signal_text(verdict.signal) + in;
    if (verdict.signal == SIGKILL)
      verdict.message += ", not by its supervisor: by its worker, by the system for want of memory, or by hand";
    return verdict;
  }
  verdict.kind = VerdictKind::kFailed;
  verdict.cause = Cause::kExit;
  if (WIFEXITED(status)) verdict.exit_code = WEXITSTATUS(status);
  verdict.message = "exited with code " + std::to_string(verdict.exit_code) +
                    (in.empty() ? " between transitions" : in) + "; a side task must not end its process";
  return verdict;
}

bool in_good_order(const Verdict& verdict) {
  return verdict.kind == VerdictKind::kFinished || verdict.kind == VerdictKind::kStopped;
}

bool for_its_lease(const Verdict& kill) {
  return kill.cause == Cause::kLeaseEnd || kill.cause == Cause::kUnleased || kill.cause == Cause::kNoPause;
}

}  // namespace

void FirstCause::said(const Outcome& words) {
  if (std::exchange(said_, true)) return;
  Verdict verdict = words.verdict;
  if (killed_) {
    verdict = std::move(outcome_.verdict);
    policy::note_symptom(verdict, words.verdict);
  }
  outcome_ = words;
  outcome_.verdict = std::move(verdict);
}

void FirstCause::killed(const Verdict& kill) {
  if (std::exchange(killed_, true)) return;
  if (said_ && in_good_order(outcome_.verdict) && for_its_lease(kill)) {
    const Verdict lie = std::exchange(outcome_.verdict, kill);
    policy::note_symptom(outcome_.verdict, lie);
  } else {
    policy::note_symptom(outcome_.verdict, kill);
  }
}

Outcome FirstCause::ended(int status, uint32_t transition) {
  // After last words it is the runner that exits, and after a kill the signal is the supervisor's own.
  if (!killed_ && (!said_ || WIFSIGNALED(status)))
    policy::note_symptom(outcome_.verdict, of_status(status, pages::transition_name(transition)));
  return outcome_;
}

}  // namespace freeride::runner
