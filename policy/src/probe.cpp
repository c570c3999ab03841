#include "freeride/policy/probe.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace freeride::policy {
namespace {

constexpr uint32_t kLeastRow = 3, kMostRow = 8;
constexpr double kFalseRows = 1e-6;  // rows of findings that may be training's own, of all probes
// What is believed before anything was seen: one finding in a hundred probes is training's own.
constexpr double kPriorFindings = 1, kPriorProbes = 100;

// SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of x.
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

bool is_probed(uint64_t secret, uint64_t bubble, uint32_t one_in) {
  return one_in != 0 && mixed(secret ^ mixed(bubble)) % one_in == 0;
}

ProbeOutcome judge_probe(const ProbeTimes& times, int64_t until_ns, int64_t busy_ns) {
  if (times.launched_ns <= 0 || times.launched_ns >= until_ns) return ProbeOutcome::kUnknown;
  const bool began = times.began_ns > 0 && times.began_ns <= until_ns;
  const int64_t waited_ns = (began ? times.began_ns : until_ns) - times.launched_ns;
  if (waited_ns >= busy_ns) return ProbeOutcome::kFound;
  // A gap that reaches past the bubble's end may be training's.
  const bool ended = times.ended_ns > 0 && times.ended_ns <= until_ns;
  if (!began || !ended || times.ended_ns < times.began_ns) return ProbeOutcome::kUnknown;
  if (times.gap_ns >= busy_ns) return ProbeOutcome::kFound;
  return times.began_by_ns - times.launched_ns < busy_ns ? ProbeOutcome::kClean : ProbeOutcome::kUnknown;
}

bool ProbeJudge::is_guilty(uint64_t content) const {
  return content != 0 && std::find(std::begin(guilty_), std::end(guilty_), content) != std::end(guilty_);
}

uint32_t ProbeJudge::needed() const {
  const double share =
      (static_cast<double>(disproved_) + kPriorFindings) / (static_cast<double>(probes_) + kPriorProbes);
  const double row = std::ceil(std::log(kFalseRows) / std::log(std::min(share, 0.999)) - 1e-9);
  return row > kMostRow ? 0 : std::max(kLeastRow, static_cast<uint32_t>(row));
}

ProbeJudge::Decision ProbeJudge::note(ProbeOutcome outcome, std::span<const ProbeSuspect> suspects, int64_t now_ns) {
  if (outcome == ProbeOutcome::kUnknown) return {};
  if (outcome == ProbeOutcome::kFound && evicted_ != 0 && now_ns - evicted_ns_ < kGoneNs) return {};
  ++probes_;
  const uint64_t evicted = std::exchange(evicted_, 0);
  if (outcome == ProbeOutcome::kClean) {
    if (evicted != 0 && !is_guilty(evicted)) {
      guilty_[next_guilty_] = evicted;
      next_guilty_ = (next_guilty_ + 1) % kMostGuilty;
    } else {
      disproved_ += row_;
    }
    row_ = 0;
    return {};
  }
  if (suspects.empty()) {  // nobody could have been it
    disproved_ += row_ + 1;
    row_ = 0;
    return {};
  }
  ++row_;
  const uint32_t enough = needed();
  if (enough == 0 || row_ < enough) return {};
  const auto latest = std::max_element(suspects.begin(), suspects.end(),
                                       [](const auto& a, const auto& b) { return a.last_served < b.last_served; });
  evicted_ = latest->content;
  evicted_ns_ = now_ns;
  return {static_cast<size_t>(latest - suspects.begin()), is_guilty(latest->content)};
}

void ProbeJudge::training_changed() {
  row_ = 0;
  probes_ = disproved_ = evicted_ = 0;
}

}  // namespace freeride::policy
