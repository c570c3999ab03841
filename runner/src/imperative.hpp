// Imperative: the imperative interface, RunGpuWorkload under leases.
#pragma once

#include <cstdint>

#include "freeride/plugin.h"
#include "job.hpp"
#include "thaw.hpp"
#include "turn.hpp"
#include "workload.hpp"

namespace freeride::runner {

/// The main thread's side: the workload's thread executes, this one watches the lease and holds the workload at its
/// gate so early that PauseSideTask is over when the lease is. All but the gate on the main thread. Parts, turn and
/// `thaw` (nullptr: there is nobody who wakes a process that stops itself) are the caller's.
class Imperative {
 public:
  Imperative(TaskParts& parts, Turn& turn, Thaw* thaw)
      : parts_(parts), turn_(turn), thaw_(thaw), workload_(parts.admission) {}

  /// PrepareGpuWorkload, under the init lease; blocks until it has returned. The thread of an older plugin, which has
  /// none, starts with its first lease.
  freeride_status prepare();
  /// A turn under a bubble's lease, PAUSED before and after; or none, where no piece may begin.
  Next run(const SeenLease& seen);
  /// Under the profile lease, in a turn that has begun: until `until_ns`, or the workload's end, or the lease is
  /// taken back, which is kGoOn: the rest is for bubbles. Ends the turn.
  Next profile(int64_t until_ns);
  /// Holds the workload at its gate, where nothing of it changes; waits for that until `until_ns`.
  void hold(int64_t until_ns);
  /// The task stops: the workload is let through its gate, and is waited for a while.
  void abandon();
  /// Stops the whole process, wherever its threads are, until the supervisor sees a lease or an order to stop that this
  /// process, which has read the page at `sequence`, has not seen yet.
  void stand_still(uint32_t sequence);

  bool started() const { return workload_.started(); }
  /// The gate, where a call comes from the workload's thread.
  Workload& workload() { return workload_; }

 private:
  void open_gate(bool once);
  bool is_stuck() const { return stuck_ && workload_.arrivals() == stuck_at_; }
  Next end_turn(Admission::Opening opening);

  TaskParts& parts_;
  Turn& turn_;
  Thaw* const thaw_;
  Workload workload_;
  bool stuck_ = false;     ///< it was stopped in the middle of a piece,
  uint32_t stuck_at_ = 0;  ///< the one after it had come to its gate so many times
};

}  // namespace freeride::runner
