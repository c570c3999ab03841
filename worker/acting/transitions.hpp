// Transitions: when side tasks worked outside of leases for steps: created, initialised, profiled, saved, stopped.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace freeride::worker {

/// The latest stretches of time in which any side task of the device was in a transition, to tell of an iteration
/// whether one was. Belongs to the acting thread. No allocation.
class Transitions {
 public:
  /// One look: whether any task is in one now.
  void look(bool any, int64_t now_ns) {
    if (any && from_ns_ == 0) from_ns_ = now_ns;
    if (any || from_ns_ == 0) return;
    stretches_[next_++ % stretches_.size()] = {from_ns_, now_ns};
    from_ns_ = 0;
  }
  /// Whether one was between these times. Of more stretches than are kept, the oldest are forgotten: iterations are
  /// asked about within a second of their end.
  bool within(int64_t begin_ns, int64_t end_ns) const {
    if (from_ns_ != 0 && from_ns_ < end_ns) return true;
    for (const Stretch& one : stretches_) {
      if (one.end_ns != 0 && one.begin_ns < end_ns && one.end_ns > begin_ns) return true;
    }
    return false;
  }

 private:
  struct Stretch {
    int64_t begin_ns = 0, end_ns = 0;
  };
  std::array<Stretch, 32> stretches_;
  size_t next_ = 0;
  int64_t from_ns_ = 0;  // 0: none now
};

}  // namespace freeride::worker
