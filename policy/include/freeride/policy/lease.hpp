// Whether a side task may execute on a device now, which one, what for, and until when. This is the paper's Algorithm 2
// as one step over a snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "freeride/policy/holdout.hpp"
#include "freeride/policy/why.hpp"

namespace freeride::policy {

/// What a lease is for. The values are those of the lease page (FREERIDE_LEASE_*).
enum class LeaseKind : uint32_t {
  kNone = 0,
  kBubble = 1,   ///< a bubble: steps that fit before the deadline
  kInit = 2,     ///< InitSideTask, no steps; once for each task
  kProfile = 3,  ///< InitSideTask and a profile's steps, where no training can be; once
  kIdle = 4,     ///< steps where no training can be, for tasks that may
  kSave = 5,     ///< SaveState; PAUSED before and after
};

/// Whether a lease of this kind is for a transition of one task, not for steps. Such a lease is given beside a training
/// too, for longer than any bubble, and the device's other leases continue beside it.
constexpr bool is_own(LeaseKind kind) {
  return kind == LeaseKind::kInit || kind == LeaseKind::kProfile || kind == LeaseKind::kSave;
}

/// A start of a task waits for a phase that is known to last so long.
constexpr int64_t kStartableNs = 200'000'000;

/// One training rank of the device, as its bubble page shows it just now. Nothing here is trusted.
struct RankView {
  bool active = false;     ///< the hook vouches for its marks
  uint64_t iteration = 0;  ///< of the state word
  uint32_t wait = 0;       ///< of the state word; 0: training owns the device
  int64_t begin_ns = 0;    ///< when the bubble began
  int64_t low_ns = 0;      ///< learned lengths; low 0: not known
  int64_t mid_ns = 0;
  int64_t high_ns = 0;
  const HoldoutPlan* plan = nullptr;  ///< the plan that holds for `iteration`; null: nothing is held out
  bool phase = false;  ///< it is in an idle phase, which training ends by a word: leases may follow it past its lengths
  // Of phases that are long enough for a task's start (kStartableNs): when the last one ended, and how far apart they
  // are at most; 0: none is expected.
  int64_t phase_ended_ns = 0, phases_apart_ns = 0;
};

/// One side task of the device.
struct TaskView {
  bool runnable = false;        ///< initialised, ordered to run, alive
  bool executing = false;       ///< has not paused yet, with or without a lease; not under a lease of its own
  bool when_idle = false;       ///< may run while no rank is attached
  int32_t priority = 0;         ///< higher first
  uint64_t last_served = 0;     ///< serial number of its last lease; 0: never had one
  int64_t predicted_ns = 0;     ///< duration of its next step; 0: not known
  int64_t declined_ns = 0;      ///< it gave back a lease with this deadline: nothing for it up to there. 0: none
  int64_t orders_until_ns = 0;  ///< the manager's orders for it have expired then (OrderLimits); 0: they never do
  // A lease of its own: kInit, kProfile or kSave.
  LeaseKind wants = LeaseKind::kNone;  ///< kProfile: kInit where there is a training
  int64_t wants_since_ns = 0;          ///< since when it wants one
  LeaseKind holds = LeaseKind::kNone;
  int64_t holds_until_ns = 0;  ///< its deadline
  bool init_done = false;      ///< InitSideTask is over
  bool done = false;           ///< so is all that the held one is for, or the task has been killed
};

enum class LeaseOrder {
  kRoundRobin,  ///< who was served longest ago
  kBestFit,     ///< whose step fills what remains best; unknown steps last
};

struct LeaseLimits {
  int64_t shortest_ns = 200'000;              ///< less than this is not worth waking anybody
  int64_t longest_ns = 10'000'000'000;        ///< bound on any one lease of a bubble, whatever the pages say
  int64_t idle_slice_ns = 500'000'000;        ///< length of a lease while no rank is attached
  int64_t future_ns = 1'000'000;              ///< a begin further ahead than this is a lie
  int64_t init_ns = 30 * 1'000'000'000LL;     ///< length of an init lease, and of a save lease
  int64_t profile_ns = 30 * 1'000'000'000LL;  ///< length of a profile lease
  LeaseOrder order = LeaseOrder::kRoundRobin;
  // Of an idle phase whose end is not known, or past the one that was: leases end so far ahead, and move on with time.
  // No longer step is begun, and the end of a phase delays training by the step under way: so the longer a phase has
  // gone on past what is known, the longer steps may be.
  int64_t least_slice_ns = 10'000'000;
  int64_t most_slice_ns = 1'000'000'000;
  double slice_share = 0.05;              ///< of that time
  int64_t start_ns = 1'000'000'000;       ///< a start is begun in a phase that is expected to last so much longer
  int64_t patience_ns = 600'000'000'000;  ///< that a start waits for a phase, at most, whatever the pages say
};

constexpr size_t kNoTask = SIZE_MAX;

struct LeaseSnapshot {
  int64_t now_ns = 0;
  std::span<const RankView> ranks;
  std::span<const TaskView> tasks;
  // The device's open lease, of a bubble or an idle one.
  size_t open_task = kNoTask;  ///< who holds it; kNoTask: there is none
  int64_t open_deadline_ns = 0;
  bool open_is_idle = false;
  LeaseLimits limits;
  int64_t probe_room_ns = 0;  ///< the bubble is to be probed: leases end so long before its learned end, for good
  bool only_probes = false;   ///< beside a training no lease is begun: what it does alone is being probed
  // A training may be there that is not attached.
  bool other_process = false;  ///< a process is on the GPU that is no rank, no side task's and not the worker's
  int64_t settled_ns = 0;      ///< before it one may not have found the worker yet
};

enum class LeaseVerb {
  kNothing,  ///< leave things as they are
  kOpen,     ///< open a lease for `task`; one of a bubble that is open now has passed or was given back and is replaced
  kClose,    ///< take the lease of `task` back
};

/// One change at most. Where look_again_ns is not later than now, there may be another: decide once more.
struct LeaseAction {
  LeaseVerb verb = LeaseVerb::kNothing;
  LeaseKind kind = LeaseKind::kNone;  ///< of the lease that is opened or closed
  size_t task = kNoTask;              ///< whose lease that is
  int64_t deadline_ns = 0;            ///< kOpen only
  int64_t look_again_ns = 0;   ///< something may change by time alone then; 0: only pages and orders can change it
  Why why = Why::kNone;        ///< why nobody has a lease for steps; kNone: somebody has
  bool training_came = false;  ///< kClose only: a profile lease is taken back, since a training has come
  bool expired = false;        ///< kClose only: a lease is taken back, since its task's orders have expired
};

/// Decides one step.
///
/// A lease of a bubble is opened only while every rank is in a bubble of known length that is neither held out nor off
/// duty. It ends at the earliest of the ranks' begin + low. If the bubble is still open then, another lease ends at
/// mid, and then one at high. In an idle phase leases go on from there in slices, until it ends. One task executes
/// steps at a time: while one has not paused, no other gets a lease. Tasks whose step fits what remains come first,
/// then priority counts, then LeaseOrder. A task whose step is thought too long still gets what nobody else can use:
/// its runner judges with fresher figures.
///
/// Init, profile and save leases are given one at a time. They begin while nobody has or uses a lease for steps.
/// Bubbles end by themselves. Idle leases, and those of a phase, would follow each other without end, so they stop
/// until the other lease has begun. A profile lease ends with InitSideTask when a training has come. Where training has
/// idle phases, init and profile leases wait for one.
///
/// A device without ranks is not idle for sure: a training may be there that has no hook, or has not attached yet. So
/// until settled_ns there is no idle lease, and a profile waits. With another process on the GPU there is no idle
/// lease, and a profile is taken as beside a training.
///
/// No lease outlives the orders of its task: one for steps ends with them at the latest, the others are taken back.
/// Pure, no allocation, under 1 µs for a few ranks and tasks.
LeaseAction decide_lease(const LeaseSnapshot& snapshot);

}  // namespace freeride::policy
