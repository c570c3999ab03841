// Pace: how fast a count grows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "freeride/base/clock.hpp"

namespace freeride::manager {

/// Counts a second over the last half minute or so, from looks at irregular times. At most two marks are kept for each
/// second. Not thread-safe.
class Pace {
 public:
  void note(uint64_t count, int64_t now_ns) {
    if (!marks_.empty() && now_ns - marks_.back().first < kBetweenNs) return;
    marks_.emplace_back(now_ns, count);
    while (marks_.size() > 2 && now_ns - marks_[1].first > kWindowNs) marks_.pop_front();
  }
  /// `count` now; 0: not known yet, or it stands still.
  double per_s(uint64_t count, int64_t now_ns) const {
    if (marks_.empty() || count <= marks_.front().second || now_ns <= marks_.front().first) return 0;
    return static_cast<double>(count - marks_.front().second) * kNsPerSec /
           static_cast<double>(now_ns - marks_.front().first);
  }

 private:
  static constexpr int64_t kBetweenNs = kNsPerSec / 2, kWindowNs = 30 * kNsPerSec;
  std::deque<std::pair<int64_t, uint64_t>> marks_;
};

}  // namespace freeride::manager
