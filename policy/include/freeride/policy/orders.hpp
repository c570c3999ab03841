// Orders: how long a manager's order lets a worker run a task, and when the task may be placed again. Also what a copy
// of it on some worker is worth then.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// The manager's; workers are told with every plan.
struct OrderLimits {
  int64_t pause_ns = 15'000'000'000;  ///< without a renewed order the task has no lease
  int64_t stop_ns = 120'000'000'000;  ///< and then its processes are ended
  int64_t margin_ns = 6'000'000'000;  ///< the manager's alone: see place_again_ns()
};

/// Moments of the worker's CLOCK_BOOTTIME; 0: never, as under a manager of an earlier version.
struct OrderTerm {
  int64_t until_ns = 0;  ///< from then on it has no lease
  int64_t end_ns = 0;    ///< from then on it has no process
};

/// The worker's side. A renewal counts from when the worker *sent* the report that the renewal answers.
OrderTerm term_of(int64_t sent_ns, const OrderLimits& limits);

/// The manager's side: when a task may be placed elsewhere. Its worker was last heard at `heard_ns`, by the manager's
/// clock. Or an earlier manager, which ended before `heard_ns`, may have placed the task.
///
/// Both copies never have a lease at once. Every renewal answers a report of the worker's (`heard` on the wire). The
/// worker has sent that report (S, its clock) before the manager has taken it (A, its clock). The worker stops at
/// S + pause. The manager places at A + pause + margin, for the latest A that there was.
///
/// Clocks are never compared, only lengths. S is before A, so the two moments are apart by at least the margin less
/// what the clocks drift apart in `pause`. Slewed clocks are wrong by 500 ppm each at most: 15 ms in 15 s. The rest of
/// the margin is for a step that executes past the end. The kill rule bounds it: by the workers' --hang-ms, 5 s, if the
/// task gets no processor to pause with.
///
/// A manager that is stopped between its decision and its order only places later. So does one whose clock stands still
/// while its host is suspended; the worker's clock continues.
int64_t place_again_ns(int64_t heard_ns, const OrderLimits& limits);

/// What a worker's copy of a task is to the manager.
enum class Standing {
  kOrdered,     ///< it runs by the latest order
  kNewer,       ///< by a later order than the manager knows: the manager's database is older
  kSuperseded,  ///< by an earlier order: the task has been placed anew since
  kEnded,       ///< the task's verdict is recorded
  kUnknown,     ///< there is no record of the task: it is kept, whatever it is
};

/// What the manager's records have of the copy's task (name and instance), and what the worker says.
struct CopyView {
  bool live = false;        ///< there is a live task
  bool ended = false;       ///< there is one that has ended
  uint64_t epoch = 0;       ///< of the live task's latest placement
  bool here = false;        ///< that was on this worker
  bool queued = false;      ///< the live task is in the queue
  bool has_epochs = false;  ///< the worker's version tells epochs
  uint64_t reported = 0;    ///< the copy's epoch
};

/// The one rule by which states, results and verdicts of a copy are taken (kOrdered) or refused. Pure.
Standing standing_of(const CopyView& copy);

}  // namespace freeride::policy
