// Why: the one reason for which a side task has no lease now, or has leases and makes no step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace freeride::policy {

/// Closed: a new reason is added here, in why_name(), render_why() and bus/WIRE.md. In the order in which a task meets
/// them: from its submission to a lease in which no step fits.
enum class Why {
  kNone,  ///< nothing is in its way
  // In the manager's queue.
  kQueued,        ///< not looked at yet
  kNoWorker,      ///< there is no worker
  kAfter,         ///< another task has to finish first
  kParallel,      ///< as many of its group as may be at once are on workers
  kDrained,       ///< the devices that it could use are drained
  kNoTrainer,     ///< no training with the job, stage or replica that it asks for
  kNoMemory,      ///< no worker that matches has enough memory free now
  kFaults,        ///< its content, user or job has faulted GPUs too often
  kProfileWait,   ///< its content is to be profiled, and cannot be now
  kProfiling,     ///< its content is being profiled
  kCreating,      ///< its worker has been told to create it
  kWorkerSilent,  ///< its worker has not reported since it was lost or restarted, or the manager was
  kFenced,        ///< orders to run it elsewhere may not have expired yet
  // On its worker.
  kNotRecorded,    ///< the manager has no record of it: it is paused and kept
  kStopping,       ///< it is being stopped
  kPausedByUser,   ///< ordered to pause
  kReplacing,      ///< another content is taking over
  kLoading,        ///< it is being loaded, or in CreateSideTask
  kInitLease,      ///< waits for its init lease, or is in InitSideTask
  kSaveLease,      ///< waits for a save lease, or is in SaveState
  kOrdersExpired,  ///< its worker has not heard from the manager for too long
  // No lease for anybody on the device: what decide_lease() says.
  kDeviceIdle,    ///< no training is attached, and it may not run without one
  kSettling,      ///< no training is attached, but its worker has just started: one may attach yet
  kOtherProcess,  ///< no training is attached, but a process that may be one uses the GPU
  kTraining,      ///< training owns the device
  kInactive,      ///< a rank's hook does not vouch for its marks
  kImplausible,   ///< a rank's page says what cannot be
  kHoldout,       ///< the iteration is held out
  kOffDuty,       ///< the slowdown budget skips the iteration
  kUnknown,       ///< the bubble's length has not been learned yet
  kPastLengths,   ///< the bubble is longer than all learned lengths, or about to be
  kOtherLease,    ///< another side task has the lease, or waits for the device to initialise or save
  kProbe,         ///< the GPU is probed for work that nobody has a lease for
  kNoTask,        ///< no task can use what remains of the bubble
  // A lease, but no step.
  kStepTooLong,  ///< its next step does not fit the bubbles
  kWorkTooLong,  ///< a program's GPU work, one submission of it, is longer than its leases
  kStarved,      ///< its next step does not fit, since steps executed for less than half of their time
};

/// Figures and names for the sentence; what is not known keeps its default and is left out.
struct WhyDetail {
  /// kNoTrainer: what is waited for ("a trainer with stage 3"). kAfter: the other task. kParallel: how many of which
  /// group. kNoMemory, kFaults, kProfileWait: what stands in the
  /// way. kInactive: the rank whose hook is off. kWorkTooLong: the kernel. Where names_worker(): the worker.
  std::string what;
  std::string since;      ///< queue: why it was queued again, if it was; comes first
  int64_t step_ns = 0;    ///< the next step, or the next piece of one with yield points, as predicted; the work
  int64_t bubble_ns = 0;  ///< the longest lease of the last minute; kWorkTooLong: of the last 32
  uint64_t leases = 0;    ///< that it was given
  uint64_t skipped = 0;   ///< of them, in which no step fitted
  double duty_pct = 100;  ///< of the slowdown budget
};

/// kProfiling, kCreating, kWorkerSilent, kFenced, kNotRecorded, kDeviceIdle, kSettling, kOtherProcess: the sentence
/// names the worker.
bool names_worker(Why why);

/// The name on the bus, "" for kNone. Any thread.
const char* why_name(Why why);
/// The value of a name from outside; nothing for one that is not known.
std::optional<Why> why_of(std::string_view name);

/// The one sentence for people, without a full stop; "" for kNone. It says what is missing and, where somebody can do
/// something about it, what. The manager calls it once; `tasks`, `task`, `top` and JSON show its result.
std::string render_why(Why why, const WhyDetail& detail);

/// Whether leases that were given back unused mean that the task's steps do not fit its bubbles: most of at least 20.
bool steps_do_not_fit(uint64_t leases, uint64_t skipped);

}  // namespace freeride::policy
