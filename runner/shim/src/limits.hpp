// What no lease states: how much of the GPU a program under the shim may have queued, and how that is found out.
#pragma once

#include <cstdint>

#include "freeride/base/clock.hpp"

namespace freeride::shim {

struct Limits {
  /// What all of a process's submissions that are not done are expected to take, at most, ns. One that takes longer
  /// passes when it is alone.
  int64_t bound_ns = kNsPerMs;
  /// The same while a lease has several times as much left: so the next of two long ones is queued behind the first,
  /// and the GPU does not wait for the host between them.
  int64_t early_bound_ns = 2 * kNsPerMs;
  /// What is expected to take so long at most may be on credit: what is longer is not bound by launches. A thread that
  /// launches on credit looks at the time each time that it has spent so much.
  int32_t short_ns = 62 * kNsPerUs;
  /// Credit not spent by then is lost.
  int64_t credit_span_ns = kNsPerMs;
  /// Of a lease, for what lies between the look at the lease page and the GPU's begin.
  int64_t margin_ns = 20 * kNsPerUs;
  /// Queued work of which nothing is done for so long, and for four times what it was expected to take, waits for
  /// something else than the GPU. It is not counted any more, so that what it waits for can pass.
  int64_t stall_ns = 20 * kNsPerMs;
  /// The process is a plugin's, not a program's (FREERIDE_SHIM_PLUGIN): see room_of().
  bool plugin = false;
};

}  // namespace freeride::shim
