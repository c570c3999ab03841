// AgeClock: what "now" is for whoever forgets what is old.
#pragma once

#include <cstdint>

namespace freeride::policy {

/// The wall clock, but never sooner than the monotonic clock allows, so that a step of the wall clock makes nothing
/// old. Behind the wall clock, as after a time without power, it is a quarter faster than time. A plain value.
class AgeClock {
 public:
  /// `most_unix_ms`: it begins there, whatever the wall clock says then, such as at the newest that is kept; 0: it
  /// begins at the wall clock, and one that is behind then is not caught up with.
  explicit AgeClock(int64_t most_unix_ms = 0) : most_unix_ms_(most_unix_ms) {}
  /// Unix milliseconds, at most `unix_ms`, which the wall clock says. `now_ns`: the monotonic clock.
  int64_t at(int64_t unix_ms, int64_t now_ns);

 private:
  int64_t most_unix_ms_;
  int64_t at_unix_ms_ = -1, at_ns_ = 0;
};

}  // namespace freeride::policy
