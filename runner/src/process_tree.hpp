// Ending a plugin's process with everything it has started.
#pragma once

#include <cstdint>

namespace freeride::runner {

/// Makes this process the reaper of all its descendants: what a plugin's process leaves behind becomes our child,
/// whatever session or group it moved to.
void adopt_descendants();

/// Kills and reaps every child of this process, and what becomes its child thereby, until there is none. Blocks at most
/// about `most_ms` (a process in an uninterruptible system call cannot be waited for). Returns how many it found, or -1
/// when some were still there at the end. Main thread; nobody else may wait for children.
int kill_descendants(int64_t most_ms);

}  // namespace freeride::runner
