// Ends a child process of the main thread's without waiting for it.
#pragma once

#include <functional>

#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// Kills a child and all of its session, and sees to it that it does not stay as a zombie, without waiting here. The
/// child's descriptor must not be watched any more. `after` (may be null) is called when it is gone. Main thread.
void end_child(Child child, Loop& loop, std::function<void()> after);

/// The same of a child that ends by itself, or not for a long time.
void reap_child(Child child, Loop& loop, std::function<void()> after);

}  // namespace freeride::worker
