#include "overrun_sample.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "freeride/base/time.hpp"

namespace freeride::manager {

OverrunSample::OverrunSample(size_t most, uint64_t seen, std::vector<int64_t> sample)
    : most_(most), seen_(seen), sample_(std::move(sample)) {}

void OverrunSample::add(int64_t overrun_ns) {
  ++seen_;
  if (sample_.size() < most_) {
    sample_.push_back(overrun_ns);
    return;
  }
  // xorshift64 is good enough here.
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  if (const uint64_t at = random_ % seen_; at < most_) sample_[at] = overrun_ns;
}

double OverrunSample::percentile_us(double share) const {
  if (sample_.empty()) return 0;
  std::vector<int64_t> values = sample_;
  const auto at = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::min(at, values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return static_cast<double>(*nth) / kNsPerUs;
}

}  // namespace freeride::manager
