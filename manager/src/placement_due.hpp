// PlacementDue: what the Scheduler is to look at.
#pragma once

#include <string>
#include <unordered_set>

namespace freeride::manager {

/// Noted by whoever changes what placement depends on (tasks, workers, memory, profiles); taken by the Scheduler. One
/// thread.
struct PlacementDue {
  bool raised = true;  ///< the queue is to be looked at
  /// Names of workers on which there may be other room, or other tasks, than when Devices last looked at them. One that
  /// is missing here is in it with its next report.
  std::unordered_set<std::string> changed;
};

}  // namespace freeride::manager
