// Heartbeat: when somebody who reports regularly reports next.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// The first moment after `now_ns` that is `phase_ns` after a multiple of `period_ns`. A report in between, because
/// something has happened, moves no later one: what happens to ten thousand workers at once would else have them all
/// report at once from then on. `phase_ns`: of each worker another one. Pure; any thread.
int64_t next_heartbeat_ns(int64_t now_ns, int64_t phase_ns, int64_t period_ns);

}  // namespace freeride::policy
