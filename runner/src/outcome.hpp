// How a side task ended: the verdict, and what was measured of the end.
#pragma once

#include <cstdint>

#include "freeride/policy/verdict.hpp"

namespace freeride::runner {

/// A plain value. The figures are the runner's own, for `check` and profiles: 0 where the process did not live to say
/// them.
struct Outcome {
  policy::Verdict verdict;
  uint32_t threads_left = 0;    ///< of the plugin's, after StopSideTask
  uint32_t threads_awake = 0;   ///< of them, that executed then
  uint32_t processes_left = 0;  ///< that the plugin had started, after its own process ended; counted by the supervisor
  int64_t step_p50_ns = 0, step_p90_ns = 0, step_max_ns = 0;
  int64_t peak_resident_bytes = 0;  ///< of the plugin's process, by the kernel
};

}  // namespace freeride::runner
