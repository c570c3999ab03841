// How this system's own processes stand back where they share cores with training.
#pragma once

#include <cstdint>

#include "freeride/base/result.hpp"

namespace freeride {

/// Puts the calling thread, and those it makes from now on, behind training. When they wake they never preempt a thread
/// of the usual policy (SCHED_BATCH), and they weigh next to nothing against one (nice 19). Nothing that holds a lease
/// up may run there. Not undone without privileges. Does not block. Fails where the system refuses either.
Status stand_behind_training();

/// Gives this process at most `bytes` of memory of its own. When the host runs out, the kernel ends this process before
/// a training. Whatever somebody makes it keep, an allocation fails here at the limit and ends the process; its
/// supervisor starts it again. So the host's memory is training's. Fails if the system refuses either.
Status leave_memory_to_training(uint64_t bytes);

/// For the manager and the broker: far more than all that they are meant to keep.
constexpr uint64_t kServiceMemoryBytes = uint64_t{4} << 30;

}  // namespace freeride
