#include "freeride/base/random.hpp"

#include <spdlog/fmt/fmt.h>
#include <sys/random.h>

#include <cstdint>

#include "freeride/base/clock.hpp"

namespace freeride {

std::string random_hex() {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = static_cast<uint64_t>(SteadyClock::now());
  return fmt::format("{:016x}", bits);
}

}  // namespace freeride
