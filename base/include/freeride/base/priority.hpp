// How this system's own processes stand back where they share cores with training.
#pragma once

#include "freeride/base/result.hpp"

namespace freeride {

/// Puts the calling thread, and those it makes from now on, behind training: they never preempt a thread of the usual
/// policy when they wake (SCHED_BATCH), and weigh next to nothing against one (nice 19). Nothing that holds a lease up
/// may run there. Not undone without privileges. Does not block. Fails where the system refuses either.
Status stand_behind_training();

}  // namespace freeride
