#include "freeride/policy/step_fit.hpp"

#include <algorithm>

namespace freeride::policy {

StepFit::StepFit(const Options& options) : options_(options), patience_(std::max<uint32_t>(1, options.patience)) {}

void StepFit::record(int64_t duration_ns, int64_t room_ns) {
  duration_ns = std::max<int64_t>(0, duration_ns);
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

  if (skipped_ >= patience_ && room_ns != INT64_MAX) {
    // This step was a try below the full prediction: was it right?
    const bool wrong = duration_ns > room_ns;
    patience_ = wrong ? std::min(patience_ * 2, kMostPatience) : std::max<uint32_t>(1, options_.patience);
    if (!wrong && options_.keeps_trying) {
      predict();
      if (full_ns_ > room_ns) return;
    }
  }
  skipped_ = 0;
  predict();
}

void StepFit::seed(int64_t duration_ns) {
  seen_ = options_.enough;
  record(duration_ns, INT64_MAX);
}

void StepFit::seed(const StepFit& other) {
  if (other.seen_ >= other.options_.enough) seen_ = options_.enough;
  record(other.quantile_ns(1), INT64_MAX);
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
  if (skipped_ < patience_) {
    predicted_ns_ = full_ns_;
    return;
  }
  // One stage of decay for every further lease skipped.
  const uint32_t stage = skipped_ - patience_;
  if (stage == 0) {
    predicted_ns_ = std::min(full_ns_, with_margin(quantile_ns(0.5)));
  } else {
    const int64_t shortest = with_margin(sorted_[0]);
    const uint32_t below = stage - 1;  // that were skipped since the minimum has not fitted
    const uint32_t halves = seen_ < options_.enough ? below : below > kRareTry ? below - kRareTry : 0;
    predicted_ns_ = std::max<int64_t>(1, std::min(full_ns_, shortest) >> std::min<uint32_t>(halves, 62));
  }
}

}  // namespace freeride::policy
