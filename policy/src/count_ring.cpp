#include "freeride/policy/count_ring.hpp"

namespace freeride::policy {

uint32_t CountRing::value(uint64_t count) const {
  return count == 0 ? first : first + 1 + static_cast<uint32_t>((count - 1) % period());
}

bool CountRing::may_hold(uint64_t count) const {
  return count != 0 && (count - 1) % period() < period() - quiet;
}

bool CountRing::reached(uint32_t counter, uint32_t wanted) const {
  if (counter == released) return true;
  const uint32_t past = counter >= wanted ? counter - wanted : counter + period() - wanted;
  return past < period() / 2;
}

}  // namespace freeride::policy
