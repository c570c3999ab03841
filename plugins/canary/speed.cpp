#include "canary/speed.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "canary/values.hpp"

namespace canary {
namespace {

double quantile(std::vector<double> values, double part) {
  const auto at = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<size_t>(at)];
}

struct Header {
  uint64_t seen, random, slow, kept;
};

}  // namespace

SpeedHistory::News SpeedHistory::note(double ns) {
  window_.push_back(ns);
  if (window_.size() < kWindow) return News::kNone;
  recent_ns_ = quantile(window_, 0.5);
  const bool known = seen_ >= kLeast;
  const bool slow = known && recent_ns_ > limit_ns_;
  if (!slow) learn();
  window_.clear();
  in_a_row_ = slow != slow_ ? in_a_row_ + 1 : 0;
  if (in_a_row_ < kWindowsInARow) return News::kNone;
  in_a_row_ = 0;
  slow_ = slow;
  return slow ? News::kSlow : News::kNormal;
}

void SpeedHistory::learn() {
  for (const double ns : window_) {
    ++seen_;
    if (history_.size() < kKept) {
      history_.push_back(ns);
      continue;
    }
    random_ = mixed(random_);
    const uint64_t at = random_ % seen_;
    if (at < kKept) history_[at] = ns;
  }
  measure();
}

void SpeedHistory::measure() {
  if (history_.empty()) return;
  typical_ns_ = quantile(history_, 0.5);
  if (seen_ >= kLeast) limit_ns_ = quantile(history_, 0.99);
}

std::string SpeedHistory::save() const {
  const Header header{seen_, random_, slow_ ? 1u : 0u, history_.size()};
  std::string state(reinterpret_cast<const char*>(&header), sizeof(header));
  return state.append(reinterpret_cast<const char*>(history_.data()), history_.size() * sizeof(double));
}

bool SpeedHistory::restore(const std::string& state) {
  Header header{};
  if (state.size() < sizeof(header)) return false;
  std::memcpy(&header, state.data(), sizeof(header));
  if (header.kept > kKept || header.kept > header.seen || state.size() != sizeof(header) + header.kept * sizeof(double))
    return false;
  std::vector<double> history(header.kept);
  std::memcpy(history.data(), state.data() + sizeof(header), header.kept * sizeof(double));
  if (!std::all_of(history.begin(), history.end(), [](double ns) { return std::isfinite(ns) && ns >= 0; }))
    return false;
  history_ = std::move(history);
  seen_ = header.seen;
  random_ = header.random;
  slow_ = header.slow != 0;
  window_.clear();
  in_a_row_ = 0;
  limit_ns_ = 0;
  measure();
  return true;
}

}  // namespace canary
