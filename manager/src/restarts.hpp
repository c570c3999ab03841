// Restarts: how often a task has been started anew lately, and whether that is too often.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "freeride/base/clock.hpp"

namespace freeride::manager {

struct RestartLimit {
  uint32_t most = 3;                      ///< within the interval
  int64_t interval_ns = 600 * kNsPerSec;  ///< what is older is forgiven: it was a worker's trouble, not the task's
};

/// One task's, oldest first. In memory only: a manager that is started anew forgives. A plain value.
class Restarts {
 public:
  /// Counts one more, unless there have been too many: then false.
  bool count(int64_t now_ns, const RestartLimit& limit) {
    while (!when_ns_.empty() && now_ns - when_ns_.front() > limit.interval_ns) when_ns_.pop_front();
    if (when_ns_.size() >= limit.most) return false;
    when_ns_.push_back(now_ns);
    return true;
  }
  /// How long the next start waits: the first not at all, since it was most likely the worker's end; then longer each
  /// time, so that a trouble that passes, such as a full disk, does not use up all restarts at once.
  int64_t pause_ns() const {
    if (when_ns_.size() < 2) return 0;
    return std::min(kSecondPauseNs << (2 * std::min<size_t>(when_ns_.size() - 2, 8)), kLongestPauseNs);
  }
  /// It was not started anew after all.
  void take_back() {
    if (!when_ns_.empty()) when_ns_.pop_back();
  }

 private:
  static constexpr int64_t kSecondPauseNs = 5 * kNsPerSec, kLongestPauseNs = 300 * kNsPerSec;

  std::deque<int64_t> when_ns_;
};

}  // namespace freeride::manager
