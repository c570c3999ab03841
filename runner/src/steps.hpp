// Steps: the iterative interface, RunNextStep under leases.
#pragma once

#include <cstdint>

#include "turn.hpp"
#include "yield_points.hpp"

namespace freeride::runner {

/// Makes steps while they may begin. The hot path: between a lease's begin and the first step, and between two steps,
/// nothing allocates, locks or calls the kernel but for the clock. Main thread; blocks until the lease's end. The
/// parts, the turn and the yield points are the caller's.
class Steps {
 public:
  Steps(TaskParts& parts, Turn& turn, YieldPoints& yields) : parts_(parts), turn_(turn), yields_(yields) {}

  /// A turn under a bubble's lease, PAUSED before and after; or none, where no step may begin.
  Next run(const SeenLease& seen);
  /// Under the profile lease, in a turn that has begun: until `until_ns`, or enough is known, or the lease is taken
  /// back, which is kGoOn: the rest is for bubbles. Ends the turn.
  Next profile(int64_t until_ns);

 private:
  Next step();

  TaskParts& parts_;
  Turn& turn_;
  YieldPoints& yields_;
};

}  // namespace freeride::runner
