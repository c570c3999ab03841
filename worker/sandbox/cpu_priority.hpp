// CpuPriority: who waits where a side task and training want the same core.
#pragma once

namespace freeride::worker {

/// What a side task's processes are on the host's cores, in their control group, their session and by themselves.
enum class CpuPriority {
  kOrdinary,
  /// A tenth of what an ordinary process weighs. For a GPU's tasks, whose limits are of wall time: one that got no core
  /// at all could not pause, and would be killed for training's load.
  kTenth,
  kIdle,  ///< SCHED_IDLE: anything else goes first. For a CPU device's tasks, whose limits are of execution
};

}  // namespace freeride::worker
