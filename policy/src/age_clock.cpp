#include "freeride/policy/age_clock.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"

namespace freeride::policy {

int64_t AgeClock::at(int64_t unix_ms, int64_t now_ns) {
  if (at_unix_ms_ < 0) {
    at_unix_ms_ = most_unix_ms_ == 0 ? unix_ms : most_unix_ms_;
    at_ns_ = now_ns;
  } else {
    const int64_t gone_ms = std::max<int64_t>(0, now_ns - at_ns_) / kNsPerMs;
    at_unix_ms_ = std::max(at_unix_ms_, std::min(unix_ms, at_unix_ms_ + gone_ms + gone_ms / 4));
    at_ns_ += gone_ms * kNsPerMs;
  }
  return std::min(at_unix_ms_, unix_ms);
}

}  // namespace freeride::policy
