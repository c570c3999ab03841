// OverrunSample: overruns, of which a bounded number stands for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace freeride::manager {

/// Vitter's algorithm R: each overrun so far is in the sample with the same probability. Not thread-safe.
class OverrunSample {
 public:
  explicit OverrunSample(size_t most) : most_(most) {}
  /// Continues from what was kept.
  OverrunSample(size_t most, uint64_t seen, std::vector<int64_t> sample);

  void add(int64_t overrun_ns);
  /// 0 without any. `share`: 0.5 is the median.
  double percentile_us(double share) const;
  uint64_t seen() const { return seen_; }
  const std::vector<int64_t>& sample() const { return sample_; }

 private:
  size_t most_;
  uint64_t seen_ = 0;
  std::vector<int64_t> sample_;
  uint64_t random_ = 0x2545f4914f6cdd1dULL;
};

}  // namespace freeride::manager
