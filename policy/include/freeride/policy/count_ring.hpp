// Numbers for a counter that one GPU writes and another waits for, and that never come to their end.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// A count, without end, as a 32-bit value that a GPU can wait for: between `first` and `released`, and then from the
/// beginning again. `first` itself means: nothing counted yet; `released` satisfies every wait.
///
/// A GPU compares by (int32_t)(counter - wanted) >= 0 (cuStreamWaitValue32, GEQ: "a cyclic comparison which ignores
/// wraparound"). With that a counter could use all 32 bits, but `released` must satisfy whatever is wanted. So the
/// values stay within one half of the range, where that comparison is the plain one.
///
/// A rank may want one of the last values of a round while the counter has already started again. It would wait for
/// ever. So nobody holds for the last `quiet` counts of a round. `quiet` must be more than one rank can be behind
/// another.
///
/// Pure; any thread.
struct CountRing {
  uint32_t first = 0x80000000u;
  uint32_t released = 0xffffffffu;
  uint32_t quiet = 1u << 20;

  uint32_t period() const { return released - first - 1; }
  uint32_t value(uint64_t count) const;
  /// Whether to wait for this count.
  bool may_hold(uint64_t count) const;
  /// Whether a counter at `counter` has come to `wanted`, and is past it by less than half a round. For a reader that
  /// looks at a value that was wanted some time ago.
  bool reached(uint32_t counter, uint32_t wanted) const;
};

}  // namespace freeride::policy
