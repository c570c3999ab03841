// AwakeBudget: how long the acting thread may stay awake for something that is expected.
#pragma once

#include <algorithm>
#include <cstdint>

namespace freeride::worker {

/// A sleeping core takes tens of microseconds to wake, which is most of what lies between a bubble's begin and its
/// lease. So the thread looks without sleeping where a hook says that a bubble is about to begin; but hooks say what
/// they like, and a core is somebody's: at most kMost at a time, and a twentieth of all time. One thread.
class AwakeBudget {
 public:
  static constexpr int64_t kMostNs = 10'000'000;
  static constexpr int64_t kShare = 20;            ///< one part in so many
  static constexpr int64_t kSavedNs = 20'000'000;  ///< what time without use adds up to at most

  /// Until when the thread may stay awake, of `until_ns`; `now_ns` or less: not at all.
  int64_t allow(int64_t now_ns, int64_t until_ns) {
    saved_ns_ = std::min(kSavedNs, saved_ns_ + std::max<int64_t>(0, now_ns - last_ns_) / kShare);
    last_ns_ = now_ns;
    return std::min(until_ns, now_ns + std::min(kMostNs, saved_ns_));
  }
  /// What of it was used.
  void spend(int64_t ns) { saved_ns_ -= std::min(saved_ns_, ns); }

 private:
  int64_t saved_ns_ = kSavedNs, last_ns_ = 0;
};

}  // namespace freeride::worker
