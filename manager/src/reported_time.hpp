// Times that others report: no liar makes a sum overflow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "freeride/base/time.hpp"

namespace freeride::manager {

/// Of one iteration, or of what one report sums up: an idle phase may take hours.
constexpr int64_t kLongestReportedNs = 24 * 3600 * kNsPerSec;

inline int64_t bounded_ns(int64_t ns) {
  return std::clamp<int64_t>(ns, 0, kLongestReportedNs);
}

/// Adds a bounded time. Sums stop growing after a century.
inline void add_ns(int64_t& sum, int64_t ns) {
  if (sum < 100 * 365 * kLongestReportedNs) sum += ns;
}

}  // namespace freeride::manager
