// Turn: from StartSideTask to PauseSideTask.
#pragma once

#include <cstdint>
#include <utility>

#include "task_parts.hpp"

namespace freeride::runner {

/// A task's turn under one lease, or several that follow each other; the same in both interfaces. Main thread. Blocks
/// for as long as the plugin's functions take. The parts are the caller's.
class Turn {
 public:
  explicit Turn(TaskParts& parts) : parts_(parts) {}

  /// StartSideTask, under the lease that is held; RUNNING.
  Next begin();
  /// PauseSideTask; PAUSED.
  Next end();
  /// Nothing of the task fits the lease: says so, once, since the worker may give the bubble to somebody else.
  void skip(const pages::Lease& lease);

  /// Tells the worker of the first step of the turn, once. Did it?
  bool tell() {
    if (std::exchange(told_, true)) return false;
    parts_.answer.wake();
    return true;
  }
  /// In the middle of a step, another lease has room for the next piece.
  void goes_on() { told_ = false; }

 private:
  TaskParts& parts_;
  uint64_t last_skipped_ = 0;
  bool told_ = false;  ///< the worker, of the first step under the lease
};

}  // namespace freeride::runner
