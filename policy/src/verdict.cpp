#include "freeride/policy/verdict.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include "freeride/base/enum_names.hpp"

namespace freeride::policy {
namespace {

constexpr EnumName<VerdictKind> kKinds[] = {
    {VerdictKind::kNone, ""},
    {VerdictKind::kFinished, "finished"},
    {VerdictKind::kStopped, "stopped"},
    {VerdictKind::kReplaced, "replaced"},
    {VerdictKind::kEvicted, "evicted"},
    {VerdictKind::kOverran, "overran"},
    {VerdictKind::kOutOfMemory, "out_of_memory"},
    {VerdictKind::kCrashed, "crashed"},
    {VerdictKind::kFailed, "failed"},
    {VerdictKind::kRejected, "rejected"},
    {VerdictKind::kLost, "lost"},
};

constexpr EnumName<Cause> kCauses[] = {
    {Cause::kNone, ""},
    {Cause::kDone, "done"},
    {Cause::kSteps, "steps"},
    {Cause::kOrder, "order"},
    {Cause::kReplacement, "replacement"},
    {Cause::kTrainingMemory, "training_memory"},
    {Cause::kTrainingCame, "training_came"},
    {Cause::kLeaseEnd, "lease_end"},
    {Cause::kNoPause, "no_pause"},
    {Cause::kUnleased, "unleased"},
    {Cause::kProbe, "probe"},
    {Cause::kSlowTransition, "slow_transition"},
    {Cause::kNoMemory, "no_memory"},
    {Cause::kMemoryLimit, "memory_limit"},
    {Cause::kSignal, "signal"},
    {Cause::kForbiddenCall, "forbidden_call"},
    {Cause::kGpuFault, "gpu_fault"},
    {Cause::kTransition, "transition"},
    {Cause::kExit, "exit"},
    {Cause::kLimits, "limits"},
    {Cause::kSandbox, "sandbox"},
    {Cause::kPlugin, "plugin"},
    {Cause::kProgram, "program"},
    {Cause::kParameter, "parameter"},
    {Cause::kNoRoom, "no_room"},
    {Cause::kRefused, "refused"},
    {Cause::kSupervisor, "supervisor"},
    {Cause::kMpsServer, "mps_server"},
    {Cause::kDriver, "driver"},
    {Cause::kWorker, "worker"},
    {Cause::kExpired, "expired"},
    {Cause::kSuperseded, "superseded"},
};

}  // namespace

bool is_plugins_fault(VerdictKind kind) {
  return kind == VerdictKind::kOverran || kind == VerdictKind::kOutOfMemory || kind == VerdictKind::kCrashed ||
         kind == VerdictKind::kFailed || kind == VerdictKind::kRejected;
}
bool repeats_profile(VerdictKind kind) {
  return kind == VerdictKind::kLost || kind == VerdictKind::kEvicted;
}

const char* kind_name(VerdictKind kind) {
  return name_in(kKinds, kind);
}
const char* cause_name(Cause cause) {
  return name_in(kCauses, cause);
}
std::optional<VerdictKind> kind_of(std::string_view name) {
  return value_in(kKinds, name);
}
std::optional<Cause> cause_of(std::string_view name) {
  return value_in(kCauses, name);
}

std::string text_of(const Verdict& verdict) {
  std::string text = kind_name(verdict.kind);
  if (!verdict.transition.empty()) text += " in " + verdict.transition;
  if (!verdict.message.empty()) text += ": " + verdict.message;
  if (!verdict.limit.empty()) text += " (limit: " + verdict.limit + ")";
  return text;
}

void note_symptom(Verdict& first, const Verdict& later) {
  if (!later.ended()) return;
  if (!first.ended()) {
    first = later;
    return;
  }
  // A kill is how a task whose cause is known is ended: it is no crash of the task's own.
  if (first.signal == 0 && later.signal != SIGKILL) first.signal = later.signal;
  if (first.exit_code < 0) first.exit_code = later.exit_code;
  if (first.limit.empty()) first.limit = later.limit;
  std::string said = std::string(kind_name(later.kind)) + (later.message.empty() ? "" : ": " + later.message);
  const bool known = later.message == first.message ||
                     std::find(first.evidence.begin(), first.evidence.end(), said) != first.evidence.end();
  if (!known && first.evidence.size() < Verdict::kMostEvidence) first.evidence.push_back(std::move(said));
}

void note_cause(Verdict& seen, Verdict before) {
  if (before.transition.empty()) before.transition = seen.transition;
  if (before.signal == 0) before.signal = seen.signal;
  note_symptom(before, seen);
  for (std::string& sign : seen.evidence) {
    if (before.evidence.size() < Verdict::kMostEvidence) before.evidence.push_back(std::move(sign));
  }
  seen = std::move(before);
}

void doubt_stop(Verdict& said) {
  said.kind = VerdictKind::kFailed;
  said.cause = Cause::kExit;
  said.message = "ended as one that was told to stop, which nobody had ordered: " + said.message;
}

void excuse_end(Verdict& said) {
  said.kind = VerdictKind::kStopped;
  said.cause = Cause::kOrder;
  said.message = "by force: " + said.message;
}

}  // namespace freeride::policy
