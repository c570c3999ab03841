#include "freeride/policy/count_ring.hpp"

#include <catch2/catch.hpp>

using freeride::policy::CountRing;

namespace {

// What cuStreamWaitValue32 does.
bool gpu_goes_on(uint32_t counter, uint32_t wanted) {
  return static_cast<int32_t>(counter - wanted) >= 0;
}

}  // namespace

TEST_CASE("a count's values stay between its first and the released one, for ever") {
  const CountRing ring;
  CHECK(ring.value(0) == 0x80000000u);
  CHECK(ring.value(1) == 0x80000001u);
  CHECK(ring.value(ring.period()) == 0xfffffffeu);
  CHECK(ring.value(uint64_t{ring.period()} + 1) == 0x80000001u);
  CHECK(ring.value(1000 * uint64_t{ring.period()} + 7) == ring.value(7));
  for (const uint64_t count : {uint64_t{1}, uint64_t{ring.period()}, uint64_t{ring.period()} + 1, UINT64_MAX}) {
    CHECK(gpu_goes_on(ring.released, ring.value(count)));
    CHECK_FALSE(gpu_goes_on(ring.first, ring.value(count)));
  }
}

TEST_CASE("what may be held for is reached when it was counted, however near the ring's end both are") {
  // Small enough for all pairs over three rounds.
  const CountRing ring{.first = 0x80000000u, .released = 0x80000000u + 41, .quiet = 8};
  bool wrong = false, held_late = false, not_held = false;
  for (uint64_t wanted = 1; wanted <= 120; ++wanted) {
    for (uint64_t counter = wanted > 8 ? wanted - 8 : 0; counter <= wanted + 8; ++counter) {
      const bool goes_on = gpu_goes_on(ring.value(counter), ring.value(wanted));
      if (!ring.may_hold(wanted)) {
        wrong = wrong || (counter >= wanted && !goes_on);  // why it may not
        continue;
      }
      held_late = held_late || (counter >= wanted && !goes_on);
      not_held = not_held || (counter < wanted && goes_on);
      CHECK(ring.reached(ring.value(counter), ring.value(wanted)) == (counter >= wanted));
    }
  }
  CHECK(wrong);
  CHECK_FALSE(held_late);
  CHECK(not_held);  // right behind the beginning, where the other one has not come to it: harmless
}

TEST_CASE("a value that was wanted long ago counts as reached across the ring's beginning") {
  const CountRing ring;
  const uint32_t last = ring.value(ring.period()), again = ring.value(uint64_t{ring.period()} + 5);
  CHECK(ring.reached(again, last));
  CHECK_FALSE(ring.reached(last, again));
  CHECK(ring.reached(ring.released, again));
  CHECK(ring.reached(last, last));
}
