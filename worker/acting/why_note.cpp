#include "acting/why_note.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/clock.hpp"

namespace freeride::worker {
namespace {

using pages::load_relaxed;
using policy::Why;

constexpr int64_t kHalfNs = 30 * kNsPerSec;

// Whatever the bubbles are like, there is no lease while it lasts.
bool lasts(Why why) {
  return why == Why::kDeviceIdle || why == Why::kSettling || why == Why::kOtherProcess || why == Why::kInactive ||
         why == Why::kOrdersExpired || why == Why::kImplausible;
}

}  // namespace

void WhyNote::look(Why obstacle, bool in_window) {
  now_ = obstacle;
  if (!in_window) return;
  if (obstacle == Why::kNone) {
    leased_ = true;
  } else if (first_ == Why::kNone) {
    first_ = obstacle;
  }
}

void WhyNote::enter_window() {
  first_ = Why::kNone;
  leased_ = false;
}

void WhyNote::leave_window(int64_t now_ns) {
  last_ = leased_ ? Why::kNone : first_;
  closed_ = true;
  last_window_ns_ = now_ns;
}

void WhyNote::rotate(int64_t now_ns) {
  if (now_ns - half_begin_ns_ < kHalfNs) return;
  longest_before_ns_ = now_ns - half_begin_ns_ < 2 * kHalfNs ? longest_ns_ : 0;
  longest_ns_ = 0;
  half_begin_ns_ = now_ns;
}

void WhyNote::lease_opened(int64_t length_ns, int64_t now_ns) {
  rotate(now_ns);
  longest_ns_ = std::max(longest_ns_, length_ns);
  source_.longest_lease_ns.store(std::max(longest_ns_, longest_before_ns_), std::memory_order_relaxed);
}

void WhyNote::sum_up(int64_t now_ns, bool starved) {
  rotate(now_ns);
  source_.longest_lease_ns.store(std::max(longest_ns_, longest_before_ns_), std::memory_order_relaxed);
  const uint64_t steps = load_relaxed(answers_.page().steps);
  const uint64_t leases = source_.leases.load(std::memory_order_relaxed);
  const uint64_t skipped = load_relaxed(answers_.page().skipped);
  const bool closed = std::exchange(closed_, false);
  if (steps != steps_ || answers_.transition == FREERIDE_IN_STEP) {
    steps_ = steps;
    leases_ = leases;
    skipped_ = skipped;
    return say(Why::kNone);
  }
  if (lasts(now_)) return say(now_);
  if (policy::steps_do_not_fit(leases - leases_, skipped - skipped_))
    return say(starved ? Why::kStarved : Why::kStepTooLong);
  if (closed) return say(last_);
  // Between the bubbles of a training that has some, nothing is said anew.
  const bool between = now_ == Why::kTraining && last_window_ns_ != 0 && now_ns - last_window_ns_ < kNoWindowNs;
  if (!between) say(now_);
}

}  // namespace freeride::worker
