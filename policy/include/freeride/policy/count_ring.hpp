// Numbers for a counter that one GPU writes and another waits for, and that never come to their end.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// A count, without end, as a 32-bit value that a GPU can wait for: between `first` and `released`, and then from the
/// beginning again. `first` itself means: nothing counted yet; `released` satisfies every wait.
///
/// A GPU compares by (int32_t)(counter - wanted) >= 0 (cuStreamWaitValue32, GEQ: "a cyclic comparison which ignores
/// wraparound"). A counter that ran through all of the 32 bits would do with that but for `released`, which must
/// satisfy whatever is wanted; so the values stay within one half of them, where that comparison is the plain one. Who
/// wants a value from before the beginning, while the counter stands behind it, would then wait for ever; the other way
/// round nothing is held. So nobody holds for the last `quiet` counts of a round, which must be more than one rank can
/// be behind another.
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
  /// Whether a counter at `counter` has come to `wanted`, and went past it by less than half a round: for who looks at
  /// a value that was wanted some time ago.
  bool reached(uint32_t counter, uint32_t wanted) const;
};

}  // namespace freeride::policy
