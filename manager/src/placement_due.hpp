// PlacementDue: the flag that the queue is to be looked at.
#pragma once

namespace freeride::manager {

/// Raised by whoever changes what placement depends on (tasks, workers, memory, profiles); lowered by the Scheduler.
/// One thread.
struct PlacementDue {
  bool raised = true;
};

}  // namespace freeride::manager
