#include "freeride/policy/time_increase.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>

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

struct BlockTime {
  bool harvested = false;
  double duty = 0;  // 0 to 1; of a held-out block 0
  double mean_ns = 0;
};

// The blocks that can be compared; `excluded` gets the number of stalls that were left out.
std::vector<BlockTime> comparable(const std::vector<BlockMean>& blocks, uint64_t& excluded) {
  std::vector<double> sizes;
  for (const auto& block : blocks) {
    if (block.kind != BlockKind::kOther) sizes.push_back(static_cast<double>(block.iterations + block.stalls));
  }
  const double least = median(sizes) / 2;
  const bool leave_stalls_out = stalls_are_training_s_own(blocks);
  std::vector<BlockTime> times;
  for (const auto& block : blocks) {
    if (block.kind == BlockKind::kOther || static_cast<double>(block.iterations + block.stalls) < least) continue;
    double sum = block.sum_ns, count = static_cast<double>(block.iterations);
    if (leave_stalls_out) {
      excluded += block.stalls;
    } else {
      sum += block.stall_sum_ns;
      count += static_cast<double>(block.stalls);
    }
    if (count <= 0 || sum <= 0) continue;
    const bool harvested = block.kind == BlockKind::kHarvested;
    times.push_back({harvested, harvested ? block.duty_pct / 100 : 0, sum / count});
  }
  return times;
}

double t975(double degrees_of_freedom) {
  return boost::math::quantile(boost::math::students_t(degrees_of_freedom), 0.975);
}

}  // namespace

std::optional<BlockKind> block_kind(const IterationSnapshot& iteration) {
  const bool agreed = iteration.planned_held_out ? !iteration.seen_harvested : !iteration.seen_held_out;
  if (!agreed || (!iteration.side_tasks && !iteration.transitions)) return BlockKind::kOther;
  if (!iteration.planned_held_out) return BlockKind::kHarvested;
  if (iteration.transitions) return std::nullopt;
  return BlockKind::kHeldOut;
}

TimeIncrease time_increase(const std::vector<BlockMean>& blocks) {
  TimeIncrease result;
  std::vector<double> held, harvested;
  for (const BlockTime& time : comparable(blocks, result.excluded_iterations)) {
    (time.harvested ? harvested : held).push_back(time.mean_ns);
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
    half = t975(df) * ratio * std::sqrt(va + vb);
  }
  result.increase_pct = (ratio - 1) * 100;
  result.ci95_low_pct = (ratio - half - 1) * 100;
  result.ci95_high_pct = (ratio + half - 1) * 100;
  return result;
}

DutyCost duty_cost(const std::vector<BlockMean>& blocks) {
  DutyCost result;
  uint64_t excluded = 0;
  const std::vector<BlockTime> times = comparable(blocks, excluded);
  size_t held = 0, harvested = 0;
  double mean_x = 0, mean_y = 0;
  const auto n = static_cast<double>(times.size());
  for (const BlockTime& time : times) {
    ++(time.harvested ? harvested : held);
    mean_x += time.duty / n;
    mean_y += time.mean_ns / n;
  }
  if (held < kMinBlocks || harvested < kMinBlocks) return result;
  double xx = 0, xy = 0;
  for (const BlockTime& time : times) {
    xx += (time.duty - mean_x) * (time.duty - mean_x);
    xy += (time.duty - mean_x) * (time.mean_ns - mean_y);
  }
  if (!(xx > 0)) return result;
  const double b = xy / xx, a = mean_y - b * mean_x;
  if (!(a > 0)) return result;
  double squares = 0;
  for (const BlockTime& time : times) squares += std::pow(time.mean_ns - a - b * time.duty, 2);
  const double noise = squares / (n - 2);
  const double ratio = b / a, var_b = noise / xx, var_a = noise / n + mean_x * mean_x * var_b, cov = -mean_x * var_b;
  const double variance = (var_b + ratio * ratio * var_a - 2 * ratio * cov) / (a * a);
  const double half = t975(n - 2) * std::sqrt(std::max(0.0, variance));
  result.measured = true;
  result.full_pct = 100 * ratio;
  result.ci95_low_pct = 100 * (ratio - half);
  result.ci95_high_pct = 100 * (ratio + half);
  return result;
}

bool baseline_is_lost(const std::deque<BlockMean>& blocks, double share_pct) {
  if (!(share_pct > 0)) return false;  // none is wanted
  const auto baseline =
      std::find_if(blocks.rbegin(), blocks.rend(), [](const auto& block) { return block.kind == BlockKind::kHeldOut; });
  const auto harvested =
      std::count_if(blocks.rbegin(), baseline, [](const auto& block) { return block.kind == BlockKind::kHarvested; });
  return static_cast<double>(harvested) > kLostStrata * std::max(2.0, 100 / share_pct);
}

double mean_duty_pct(const std::vector<BlockMean>& blocks) {
  double sum = 0, iterations = 0;
  for (const auto& block : blocks) {
    if (block.kind != BlockKind::kHarvested) continue;
    const auto count = static_cast<double>(block.iterations + block.stalls);
    sum += count * block.duty_pct;
    iterations += count;
  }
  return iterations > 0 ? sum / iterations : std::numeric_limits<double>::quiet_NaN();
}

bool BlockSeries::add(uint64_t block, BlockKind kind, bool on_duty, double duration_ns) {
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
    current_block_ = block;
    open_ = true;
  }
  const auto count = static_cast<double>(current_.iterations + current_.stalls);
  current_.duty_pct = (current_.duty_pct * count + (on_duty ? 100 : 0)) / (count + 1);
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
