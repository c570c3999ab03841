// Threads of the plugin's that outlive StopSideTask.
#pragma once

#include <cstdint>

namespace freeride::runner {

/// Threads of this process, now.
uint32_t count_threads();
/// How many threads but this one execute within kThreadWatchMs. Blocks for that long.
uint32_t count_awake_threads();

}  // namespace freeride::runner
