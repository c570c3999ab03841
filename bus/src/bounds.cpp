#include "freeride/bus/bounds.hpp"

namespace freeride::bus {
namespace {
Bounds& process_bounds() {
  static Bounds bounds;
  return bounds;
}
}  // namespace

const Bounds& bounds() {
  return process_bounds();
}

void set_bounds(const Bounds& bounds) {
  process_bounds() = bounds;
}

}  // namespace freeride::bus
