#include "freeride/policy/length_learner.hpp"

#include <algorithm>

namespace freeride::policy {

bool LengthLearner::add_iteration(std::span<const int64_t> lengths_ns) {
  const size_t count = std::min(lengths_ns.size(), most_waits_);
  if (count == 0) return false;  // an evaluation, say: nothing to learn from
  ++iterations_;
  Schedule& schedule = schedule_of(count);
  // One odd iteration (an evaluation, a skipped step) is set aside; a second one like it is a new schedule.
  const bool fresh = !is_known(schedule) && count_ != 0 && count != count_;
  bool changed = fresh && count == last_count_;
  if (!fresh || changed) count_ = count;
  if (changed) {
    for (Schedule& other : schedules_) other.last = kUnexpected;
  }
  last_count_ = count;
  schedule.last = iterations_;
  ++schedule.iterations;
  for (size_t i = 0; i < count; ++i) {
    if (add_sample(schedule.waits[i], std::max<int64_t>(lengths_ns[i], 0))) changed = true;
  }
  return changed;
}

LengthLearner::Schedule& LengthLearner::schedule_of(size_t count) {
  for (Schedule& schedule : schedules_) {
    if (schedule.waits.size() == count) return schedule;
  }
  const auto oldest = [](const Schedule& a, const Schedule& b) { return a.last < b.last; };
  if (schedules_.size() == kSchedules) {
    schedules_.erase(std::min_element(schedules_.begin(), schedules_.end(), oldest));
  }
  schedules_.emplace_back().waits.resize(count);
  return schedules_.back();
}

bool LengthLearner::is_expected(const Schedule& schedule) const {
  if (schedule.waits.size() == count_) return true;
  return is_known(schedule) && schedule.last != kUnexpected && iterations_ - schedule.last < kAlternate;
}

size_t LengthLearner::waits() const {
  size_t most = count_;
  for (const Schedule& schedule : schedules_) {
    if (is_expected(schedule)) most = std::max(most, schedule.waits.size());
  }
  return most;
}

bool LengthLearner::add_sample(History& history, int64_t length_ns) {
  bool shifted = false;
  if (history.used >= kLeastSamples) {
    const auto factor_below = static_cast<int64_t>(static_cast<double>(history.least_ns) / kShiftFactor);
    const auto factor_above = static_cast<int64_t>(static_cast<double>(history.most_ns) * kShiftFactor);
    history.below = length_ns < std::min(factor_below, history.least_ns - kShiftLeastNs) ? history.below + 1 : 0;
    history.above = length_ns > std::max(factor_above, history.most_ns + kShiftLeastNs) ? history.above + 1 : 0;
    // The window is dropped before the newest sample goes in, and the suspects before it are put back: only they are
    // new.
    if (history.below >= kShiftSamples || history.above >= kShiftSamples) {
      std::array<int64_t, kShiftSamples> kept{};
      for (size_t i = 1; i < kShiftSamples; ++i) {
        kept[kShiftSamples - 1 - i] = history.ring[(history.next + kWindow - i) % kWindow];
      }
      history = History{};
      for (size_t i = 0; i + 1 < kShiftSamples; ++i) history.ring[history.next++] = kept[i];
      history.used = history.next;
      shifted = true;
    }
  }
  history.ring[history.next] = length_ns;
  history.next = (history.next + 1) % kWindow;
  history.used = std::min(history.used + 1, kWindow);
  learn(history);
  return shifted;
}

void LengthLearner::learn(History& history) {
  // The samples under suspicion do not widen the range that they are judged by, but they do count as samples: should
  // they be jitter, the quantiles have seen them.
  const size_t suspects = std::max(history.below, history.above);
  std::array<int64_t, kWindow> sorted{};
  const size_t trusted = history.used - std::min(suspects, history.used);
  if (trusted > 0) {
    for (size_t i = 0; i < trusted; ++i) {
      sorted[i] = history.ring[(history.next + kWindow - 1 - suspects - i) % kWindow];
    }
    const auto [least, most] = std::minmax_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(trusted));
    // Cleared of single outliers: one stall of a second must not hide a later shift of milliseconds.
    std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(trusted));
    const bool enough = trusted >= 5;
    history.least_ns = enough ? sorted[1] : *least;
    history.most_ns = enough ? sorted[trusted - 2] : *most;
  }
  history.learned.samples = static_cast<uint32_t>(history.used);
  if (history.used < kLeastSamples) return;
  const size_t used = history.used;
  std::copy_n(history.ring.begin(), used, sorted.begin());
  std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(used));
  // The least of up to nine samples, the second least of more: one outlier in a window must not cost the lease of all
  // others.
  const bool many = used >= 10;
  const int64_t low = sorted[many ? 1 : 0], mid = sorted[(used - 1) / 2];
  const auto most = static_cast<int64_t>(static_cast<double>(low) * kLowMargin);
  // Few samples say nothing of how far others may lie below them.
  history.learned.low_ns = low - (many ? std::min(most, std::max(kLeastLowMarginNs, mid - low)) : most);
  history.learned.mid_ns = std::max(history.learned.low_ns, mid);
  history.learned.high_ns = std::max(history.learned.mid_ns, sorted[(used - 1) * 9 / 10]);
}

WaitLength LengthLearner::length(size_t wait) const {
  WaitLength shortest;
  bool any = false;
  for (const Schedule& schedule : schedules_) {
    if (wait == 0 || wait > schedule.waits.size() || !is_expected(schedule)) continue;
    const WaitLength& learned = schedule.waits[wait - 1].learned;
    shortest =
        any ? WaitLength{std::min(shortest.low_ns, learned.low_ns), std::min(shortest.mid_ns, learned.mid_ns),
                         std::min(shortest.high_ns, learned.high_ns), std::min(shortest.samples, learned.samples)}
            : learned;
    any = true;
  }
  return shortest;
}

char bubble_type(uint32_t stage, uint32_t stages, size_t waits, size_t wait) {
  if (wait == 0 || wait > waits || stages < 2 || stage >= stages) return 0;
  if (stage == 0) return wait == 1 ? 'B' : 'C';           // waits for backwards only
  if (stage == stages - 1) return wait == 1 ? 'A' : 'C';  // waits for forwards only
  if (waits % 2 != 0) return 0;                           // a middle stage waits for each micro-batch twice
  if (wait == 1) return 'A';
  const size_t ahead = std::min<size_t>(stages - stage - 1, waits / 2);  // forwards before the first 1F1B pair
  // With fewer micro-batches than stages left there is no pair: the first backward follows the last forward.
  const size_t first_backward = ahead == waits / 2 ? ahead + 1 : ahead + 2;
  return wait == first_backward ? 'B' : 'C';
}

}  // namespace freeride::policy
