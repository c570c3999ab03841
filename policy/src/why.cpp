#include "freeride/policy/why.hpp"

#include <cmath>

#include "freeride/base/enum_names.hpp"
#include "freeride/base/time.hpp"

namespace freeride::policy {
namespace {

constexpr EnumName<Why> kWhys[] = {
    {Why::kNone, ""},
    {Why::kQueued, "queued"},
    {Why::kNoWorker, "no_worker"},
    {Why::kAfter, "after"},
    {Why::kParallel, "parallel"},
    {Why::kDrained, "drained"},
    {Why::kNoTrainer, "no_trainer"},
    {Why::kNoMemory, "no_memory"},
    {Why::kFaults, "faults"},
    {Why::kProfileWait, "profile_wait"},
    {Why::kProfiling, "profiling"},
    {Why::kCreating, "creating"},
    {Why::kWorkerSilent, "worker_silent"},
    {Why::kFenced, "fenced"},
    {Why::kNotRecorded, "not_recorded"},
    {Why::kStopping, "stopping"},
    {Why::kPausedByUser, "paused_by_user"},
    {Why::kReplacing, "replacing"},
    {Why::kLoading, "loading"},
    {Why::kInitLease, "init_lease"},
    {Why::kSaveLease, "save_lease"},
    {Why::kOrdersExpired, "orders_expired"},
    {Why::kDeviceIdle, "device_idle"},
    {Why::kSettling, "settling"},
    {Why::kOtherProcess, "other_process"},
    {Why::kTraining, "training"},
    {Why::kInactive, "inactive"},
    {Why::kImplausible, "implausible"},
    {Why::kHoldout, "holdout"},
    {Why::kOffDuty, "off_duty"},
    {Why::kUnknown, "unknown_length"},
    {Why::kPastLengths, "past_lengths"},
    {Why::kOtherLease, "other_lease"},
    {Why::kProbe, "probe"},
    {Why::kNoTask, "no_task"},
    {Why::kStepTooLong, "step_too_long"},
    {Why::kWorkTooLong, "work_too_long"},
    {Why::kStarved, "starved"},
};

constexpr uint64_t kEnoughLeases = 20;

std::string step_too_long(const WhyDetail& detail) {
  std::string text = "its next step";
  if (detail.step_ns > 0) text += ", " + milliseconds(detail.step_ns) + ",";
  text += " does not fit the bubbles";
  if (detail.bubble_ns > 0) text += ", the longest of which is " + milliseconds(detail.bubble_ns);
  if (detail.leases > 0) {
    text += " (" + std::to_string(detail.skipped) + " of " + std::to_string(detail.leases) + " leases unused)";
  }
  return text + "; give it shorter steps, or yield points";
}

std::string starved(const WhyDetail& detail) {
  std::string text = "its steps execute for less than half of their time";
  if (detail.step_ns > 0) text += ", so that the next one is expected to take " + milliseconds(detail.step_ns);
  return text + ": other processes have its cores, or it waits for something; see what else runs on them";
}

std::string work_too_long(const WhyDetail& detail) {
  std::string text = "its GPU work";
  if (!detail.what.empty()) text += " " + detail.what;
  if (detail.step_ns > 0) text += ", " + milliseconds(detail.step_ns) + ",";
  text += " is longer than its leases";
  if (detail.bubble_ns > 0) text += ", the longest of which was " + milliseconds(detail.bubble_ns);
  return text + "; it waits for a longer one, and is tried at the begin of some";
}

std::string with(const char* text, const char* link, const std::string& what) {
  return what.empty() ? text : std::string(text) + link + what;
}

std::string percent(double share) {
  return std::to_string(std::lround(share)) + " %";
}

std::string inactive(const std::string& rank) {
  if (rank.empty()) return "the training's hook gives no valid marks; see the trainer's log";
  return "the training hook of " + rank + " is off, so its bubbles cannot be used; see the trainer's log";
}

std::string sentence(Why why, const WhyDetail& detail) {
  switch (why) {
    case Why::kNone:
      return "";
    case Why::kQueued:
      return "submitted";
    case Why::kNoWorker:
      return "waiting for a worker: none is there; start freeride-worker";
    case Why::kAfter:
      return detail.what.empty() ? "waiting for another task to finish"
                                 : "waiting for task " + detail.what + " to finish";
    case Why::kParallel:
      return detail.what.empty() ? "waiting for others of its group" : detail.what + " are at work, as many as may be";
    case Why::kDrained:
      return with("waiting for a device that is not drained (freeride-ctl uncordon)", ": ", detail.what);
    case Why::kNoTrainer:
      return detail.what.empty() ? "waiting for a trainer" : "waiting for " + detail.what;
    case Why::kNoMemory:
      return with("waiting for memory", ": ", detail.what);
    case Why::kFaults:
      return with("blocked for GPU faults", ": ", detail.what);
    case Why::kProfileWait:
      return with("waiting to be profiled", ": ", detail.what);
    case Why::kProfiling:
      return with("being profiled", " on ", detail.what);
    case Why::kCreating:
      return with("being created", " on ", detail.what);
    case Why::kWorkerSilent:
      return "waiting for " + (detail.what.empty() ? "its worker" : "worker " + detail.what) + " to report";
    case Why::kFenced:
      return detail.what.empty() ? "waiting until every order of before the manager's start has expired"
                                 : "waiting until its orders on worker " + detail.what + " have expired";
    case Why::kNotRecorded:
      return "this manager has no record of it; it is kept, paused, on " +
             (detail.what.empty() ? "its worker" : "worker " + detail.what) +
             ": start the manager on the state that has it, or end it with freeride-ctl stop";
    case Why::kStopping:
      return "stopping";
    case Why::kPausedByUser:
      return "paused by the user";
    case Why::kReplacing:
      return "its plugin is being replaced";
    case Why::kLoading:
      return "being loaded and created";
    case Why::kInitLease:
      return "waiting for its init lease, or initialising; where training has idle phases, it waits for one";
    case Why::kSaveLease:
      return "waiting for a save lease, or saving its state";
    case Why::kOrdersExpired:
      return "paused: its worker has not heard from the manager for too long";
    case Why::kDeviceIdle:
      return with("waiting for a trainer", " on ", detail.what);
    case Why::kSettling:
      return with("waiting for trainings to attach", " to ", detail.what) + ", which has just started";
    case Why::kOtherProcess:
      return "another process uses the GPU" + (detail.what.empty() ? "" : " of " + detail.what) +
             " and is no attached rank, so nothing may run there without one; the worker's log names it";
    case Why::kTraining:
      return "training uses the device";
    case Why::kInactive:
      return inactive(detail.what);
    case Why::kImplausible:
      return "the training's page shows a bubble that cannot be; see the worker's log";
    case Why::kHoldout:
      return "the present iteration is a baseline iteration: side tasks make no steps in it";
    case Why::kOffDuty:
      return "the slowdown budget skips the present iteration (duty " + percent(detail.duty_pct) + ")";
    case Why::kUnknown:
      return "the bubbles' lengths are not learned yet";
    case Why::kPastLengths:
      return "the present bubble is longer than all that were learned";
    case Why::kOtherLease:
      return "another side task has the device";
    case Why::kProbe:
      return "the GPU is being probed, for work without a lease";
    case Why::kNoTask:
      return "what is left of the present bubble is too short";
    case Why::kStepTooLong:
      return step_too_long(detail);
    case Why::kWorkTooLong:
      return work_too_long(detail);
    case Why::kStarved:
      return starved(detail);
  }
  return "";
}

}  // namespace

bool names_worker(Why why) {
  return why == Why::kProfiling || why == Why::kCreating || why == Why::kWorkerSilent || why == Why::kFenced ||
         why == Why::kNotRecorded || why == Why::kDeviceIdle || why == Why::kSettling || why == Why::kOtherProcess;
}

const char* why_name(Why why) {
  return name_in(kWhys, why);
}
std::optional<Why> why_of(std::string_view name) {
  return value_in(kWhys, name);
}

bool steps_do_not_fit(uint64_t leases, uint64_t skipped) {
  return skipped >= kEnoughLeases && skipped > leases / 2;
}

std::string render_why(Why why, const WhyDetail& detail) {
  if (detail.since.empty()) return sentence(why, detail);
  return why == Why::kQueued ? detail.since : detail.since + "; " + sentence(why, detail);
}

}  // namespace freeride::policy
