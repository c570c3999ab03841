#include "freeride/policy/time_increase.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

namespace freeride::policy {
namespace {

constexpr double kLongestNs = 3.6e12;
constexpr size_t kRecent = 101;

struct Moments {
  size_t n = 0;
  double mean = 0;
  double variance_of_mean = 0;  // s² / n
};

Moments moments(const std::vector<double>& values) {
  Moments m;
  m.n = values.size();
  if (m.n == 0) return m;
  for (const double v : values) m.mean += v / static_cast<double>(m.n);
  if (m.n < 2) return m;
  double squares = 0;
  for (const double v : values) squares += (v - m.mean) * (v - m.mean);
  m.variance_of_mean = squares / static_cast<double>(m.n - 1) / static_cast<double>(m.n);
  return m;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

bool stalls_are_training_s_own(const std::vector<BlockMean>& blocks) {
  double stalls[2] = {0, 0}, all[2] = {0, 0};
  for (const auto& block : blocks) {
    if (block.kind == BlockKind::kOther) continue;
    const int side = block.kind == BlockKind::kHarvested ? 1 : 0;
    stalls[side] += static_cast<double>(block.stalls);
    all[side] += static_cast<double>(block.stalls + block.iterations);
  }
  return all[0] > 0 && all[1] > 0 && stalls[1] / all[1] <= 2 * stalls[0] / all[0];
}

}  // namespace

TimeIncrease time_increase(const std::vector<BlockMean>& blocks) {
  TimeIncrease result;
  std::vector<double> sizes;
  for (const auto& block : blocks) {
    if (block.kind != BlockKind::kOther) sizes.push_back(static_cast<double>(block.iterations + block.stalls));
  }
  const double least = median(sizes) / 2;
  const bool leave_stalls_out = stalls_are_training_s_own(blocks);
  std::vector<double> held, harvested;
  for (const auto& block : blocks) {
    if (block.kind == BlockKind::kOther || static_cast<double>(block.iterations + block.stalls) < least) continue;
    double sum = block.sum_ns, count = static_cast<double>(block.iterations);
    if (leave_stalls_out) {
      result.excluded_iterations += block.stalls;
    } else {
      sum += block.stall_sum_ns;
      count += static_cast<double>(block.stalls);
    }
    if (count <= 0 || sum <= 0) continue;
    (block.kind == BlockKind::kHeldOut ? held : harvested).push_back(sum / count);
  }
  const Moments a = moments(held), b = moments(harvested);
  result.heldout_blocks = a.n;
  result.harvested_blocks = b.n;
  if (a.n < kMinBlocks || b.n < kMinBlocks) return result;

  result.measured = true;
  result.heldout_ms = a.mean / 1e6;
  result.harvested_ms = b.mean / 1e6;
  const double ratio = b.mean / a.mean;
  const double va = a.variance_of_mean / (a.mean * a.mean), vb = b.variance_of_mean / (b.mean * b.mean);
  double half = 0;
  if (va + vb > 0) {
    const double df =
        (va + vb) * (va + vb) / (va * va / static_cast<double>(a.n - 1) + vb * vb / static_cast<double>(b.n - 1));
    half = boost::math::quantile(boost::math::students_t(df), 0.975) * ratio * std::sqrt(va + vb);
  }
  result.increase_pct = (ratio - 1) * 100;
  result.ci95_low_pct = (ratio - half - 1) * 100;
  result.ci95_high_pct = (ratio + half - 1) * 100;
  return result;
}

bool BlockSeries::add(uint64_t block, BlockKind kind, double duty_pct, double duration_ns) {
  if (!(duration_ns > 0) || duration_ns > kLongestNs) return false;
  if (startup_left_ > 0) {
    --startup_left_;
    return false;
  }
  const bool ended = open_ && (block != current_block_ || kind != current_.kind);
  if (ended) {
    blocks_.push_back(current_);
    if (blocks_.size() > kMaxBlocks) blocks_.pop_front();
    open_ = false;
  }
  if (!open_) {
    current_ = {};
    current_.kind = kind;
    current_.duty_pct = duty_pct;
    current_block_ = block;
    open_ = true;
  }
  const double middle = median_ns();
  if (middle > 0 && duration_ns > kStallFactor * middle) {
    ++current_.stalls;
    current_.stall_sum_ns += duration_ns;
  } else {
    ++current_.iterations;
    current_.sum_ns += duration_ns;
  }
  recent_.push_back(duration_ns);
  if (recent_.size() > kRecent) recent_.pop_front();
  return ended;
}

void BlockSeries::restore(std::vector<BlockMean> blocks) {
  blocks_.assign(blocks.begin(), blocks.end());
  while (blocks_.size() > kMaxBlocks) blocks_.pop_front();
  startup_left_ = 0;
}

double BlockSeries::median_ns() const {
  return median({recent_.begin(), recent_.end()});
}

}  // namespace freeride::policy
