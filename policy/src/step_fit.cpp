#include "freeride/policy/step_fit.hpp"

#include <algorithm>
#include <utility>

namespace freeride::policy {

StepFit::StepFit(const Options& options) : options_(options), patience_(std::max<uint32_t>(1, options.patience)) {}

void StepFit::save_up(uint64_t iterations, int64_t most_ns) {
  saves_ = true;
  most_try_ns_ = std::max<int64_t>(0, most_ns);
  const auto most = static_cast<uint64_t>(kMostSavedNs / kSavedPerIterationNs);
  saved_ns_ += static_cast<int64_t>(std::min(iterations, most)) * kSavedPerIterationNs;
  saved_ns_ = std::min(saved_ns_, kMostSavedNs);
  if (skipped_ > 0) predict();
}

void StepFit::record(int64_t duration_ns) {
  const int64_t room_ns = std::exchange(room_ns_, 0);
  // With room for what is known it was no try.
  record(duration_ns, room_ns == 0 ? predicted_ns_ : room_ns >= full_ns_ ? INT64_MAX : room_ns);
}

// It took `over_ns` more than there was room; 0: it was right.
void StepFit::judge_try(int64_t over_ns) {
  if (over_ns > 0) {
    patience_ = std::min(patience_ * 2, kMostPatience);
    saved_ns_ = std::max(saved_ns_ - over_ns, -kMostSavedNs);
    return;
  }
  patience_ = std::max<uint32_t>(1, options_.patience);
  if (!hearsay_) return;
  count_ = next_ = seen_ = 0;
  skipped_ = 0;
}

void StepFit::record(int64_t duration_ns, int64_t room_ns) {
  duration_ns = std::max<int64_t>(0, duration_ns);
  const bool tried = room_ns != INT64_MAX && count_ > 0 && tries();
  if (tried) judge_try(std::max<int64_t>(0, duration_ns - room_ns));
  hearsay_ = false;
  auto* const end = sorted_.begin() + count_;
  if (count_ == kWindow) {
    // The oldest value leaves; its place in the sorted copy is closed.
    auto* const old = std::lower_bound(sorted_.begin(), end, recent_[next_]);
    std::copy(old + 1, end, old);
  } else {
    ++count_;
  }
  seen_ = std::min(seen_ + 1, options_.enough);
  recent_[next_] = duration_ns;
  next_ = (next_ + 1) % kWindow;
  auto* const last = sorted_.begin() + count_ - 1;
  auto* const place = std::upper_bound(sorted_.begin(), last, duration_ns);
  std::copy_backward(place, last, last + 1);
  *place = duration_ns;

  // After one that was right, the next may follow at once, until the prediction fits again; by what has been seen, not
  // by what is saved.
  if (tried && duration_ns <= room_ns && (options_.keeps_trying || saves_)) {
    if (saves_) skipped_ = std::min(skipped_, wait() + 1);
    predict();
    if (full_ns_ > room_ns) return;
  }
  skipped_ = 0;
  predict();
}

void StepFit::seed(int64_t duration_ns) {
  seen_ = options_.enough;
  record(duration_ns, INT64_MAX);
  hearsay_ = count_ == 1;
}

void StepFit::seed(const StepFit& other) {
  if (other.seen_ >= other.options_.enough) seen_ = options_.enough;
  record(other.quantile_ns(1), INT64_MAX);
  hearsay_ = count_ == 1;
}

bool StepFit::fits(int64_t remaining_ns, bool first) const {
  if (remaining_ns <= 0) return false;
  if (count_ == 0) return first;
  return predicted_ns_ <= remaining_ns;
}

void StepFit::lease_skipped() {
  if (skipped_ < UINT32_MAX) ++skipped_;
  predict();
}

int64_t StepFit::quantile_ns(double q) const {
  if (count_ == 0) return 0;
  const double place = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_ - 1);
  // Rounded up: of few samples, the quantile is the larger neighbour.
  const auto index =
      static_cast<uint32_t>(place) + (place > static_cast<double>(static_cast<uint32_t>(place)) ? 1U : 0U);
  return sorted_[std::min(index, count_ - 1)];
}

void StepFit::predict() {
  if (count_ == 0) {
    predicted_ns_ = 0;
    return;
  }
  const int64_t high_ns = quantile_ns(options_.quantile);
  const bool known = count_ >= kWindow / 2;
  const auto with_margin = [&](int64_t ns) {
    const auto most_ns = static_cast<int64_t>(static_cast<double>(ns) * options_.most_margin);
    return ns + (known ? std::min(most_ns, high_ns - quantile_ns(0.5)) : most_ns) + options_.margin_ns;
  };
  full_ns_ = with_margin(high_ns);
  if (!tries()) {
    predicted_ns_ = full_ns_;
    return;
  }
  // One stage of decay for every further lease skipped.
  const uint32_t stage = skipped_ - std::min(skipped_, wait());
  if (stage == 0) {
    predicted_ns_ = std::min(full_ns_, with_margin(quantile_ns(0.5)));
  } else {
    predicted_ns_ = below_minimum(std::min(full_ns_, with_margin(sorted_[0])), stage - 1);
  }
}

// Savings wait, too: where iterations are told it is they that make a try that was wrong rarer.
uint32_t StepFit::wait() const {
  return saves_ ? std::min(patience_, std::max<uint32_t>(1, options_.patience)) : patience_;
}

// `below`: leases that were skipped since the minimum has not fitted.
int64_t StepFit::below_minimum(int64_t shortest_ns, uint32_t below) const {
  const bool enough = seen_ >= options_.enough;
  uint32_t halves = enough ? (below > kRareTry ? below - kRareTry : 0) : below;
  int64_t paid_ns = shortest_ns;
  if (saves_) {
    if (enough || saved_ns_ < 0) halves = 0;
    const int64_t dear = std::max<int64_t>(1, patience_ / std::max<uint32_t>(1, options_.patience));
    if (below > 0) paid_ns = std::min(shortest_ns, full_ns_ - std::clamp<int64_t>(saved_ns_ / dear, 0, most_try_ns_));
  }
  return std::max<int64_t>(1, std::min(paid_ns, shortest_ns >> std::min<uint32_t>(halves, 62)));
}

}  // namespace freeride::policy
