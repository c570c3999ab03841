// Whether a side task may execute on a device now, which one, and until when: the paper's Algorithm 2 as one step over
// a snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "freeride/policy/holdout.hpp"

namespace freeride::policy {

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
};

/// One side task of the device.
struct TaskView {
  bool runnable = false;     ///< initialised, ordered to run, alive
  bool executing = false;    ///< has not paused yet, with or without a lease
  bool when_idle = false;    ///< may run while no rank is attached
  int32_t priority = 0;      ///< higher first
  uint64_t last_served = 0;  ///< serial number of its last lease; 0: never had one
  int64_t predicted_ns = 0;  ///< duration of its next step; 0: not known
  int64_t declined_ns = 0;   ///< it gave back a lease with this deadline: nothing for it up to there. 0: none
};

enum class LeaseOrder {
  kRoundRobin,  ///< who was served longest ago
  kBestFit,     ///< whose step fills what remains best; unknown steps last
};

struct LeaseLimits {
  int64_t shortest_ns = 200'000;        ///< less than this is not worth waking anybody
  int64_t longest_ns = 10'000'000'000;  ///< bound on any one lease, whatever the pages say
  int64_t idle_slice_ns = 500'000'000;  ///< length of a lease while no rank is attached
  int64_t future_ns = 1'000'000;        ///< a begin further ahead than this is a lie
  LeaseOrder order = LeaseOrder::kRoundRobin;
};

constexpr size_t kNoTask = SIZE_MAX;

struct LeaseSnapshot {
  int64_t now_ns = 0;
  std::span<const RankView> ranks;
  std::span<const TaskView> tasks;
  size_t open_task = kNoTask;  ///< who holds the open lease; kNoTask: there is none
  int64_t open_deadline_ns = 0;
  bool open_is_idle = false;
  LeaseLimits limits;
  bool grant_waits = false;  ///< a task waits for all others to pause, to get a grant: idle leases, which would follow
                             ///< each other without end, stop for it. Bubbles end by themselves
};

enum class LeaseVerb {
  kNothing,  ///< leave things as they are
  kOpen,     ///< open a lease for `task`; one that is open now has passed or was given back and is replaced
  kClose,    ///< take the open lease back
};

/// Why there is no lease, in the order in which it is looked at.
enum class NoLease {
  kNone,         ///< there is one
  kTraining,     ///< a rank owns the device
  kInactive,     ///< a rank's marks are not valid
  kImplausible,  ///< a rank's page says what cannot be
  kHoldout,      ///< the iteration is held out
  kOffDuty,      ///< the slowdown budget skips this iteration
  kUnknown,      ///< no length learned yet
  kPastLengths,  ///< the bubble is already longer than all learned lengths, or about to be
  kNoTask,       ///< nobody can use it
  kNoTrainer,    ///< no rank, and no task that may run without one
  kGrant,        ///< no rank, and a task that waits for a grant
};

struct LeaseAction {
  LeaseVerb verb = LeaseVerb::kNothing;
  size_t task = kNoTask;      ///< kOpen only
  int64_t deadline_ns = 0;    ///< kOpen only
  bool idle = false;          ///< kOpen only: a lease without a trainer
  int64_t look_again_ns = 0;  ///< something may change by time alone then; 0: only pages and orders can change it
  NoLease why = NoLease::kNone;
};

/// Decides one step. A lease is opened only while every rank is in a bubble of known length that is neither held out
/// nor off duty; it ends at the earliest of the ranks' begin + low, and where the bubble is still open then, another
/// goes to mid, then high. One task executes at a time: while one has not paused, no other gets a lease. Among tasks:
/// those whose step fits what remains, then priority, then LeaseOrder. A task whose step is thought too long still gets
/// what nobody else can use: its runner judges with fresher figures. Pure, no allocation, under 1 µs for a few ranks
/// and tasks.
LeaseAction decide_lease(const LeaseSnapshot& snapshot);

}  // namespace freeride::policy
