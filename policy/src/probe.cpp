#include "freeride/policy/probe.hpp"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <iterator>
#include <utility>

#include "mix.hpp"

namespace freeride::policy {
namespace {

constexpr uint32_t kLeastRow = 3, kMostRow = 8;
constexpr double kFalseRows = 1e-6;  // rows of findings that may be training's own, of all probes
// What is believed before anything was seen: one finding in a hundred probes is training's own.
constexpr double kPriorFindings = 1, kPriorProbes = 100;
constexpr double kUnsure = 0.05;          // of the upper end of training's share (Clopper and Pearson 1934)
constexpr uint32_t kMostControls = 4096;  // that are remembered

// So many findings in a row are training's own, of which this is the share, once in a million times; 0: too many.
uint32_t row_for(double share) {
  const double row = std::ceil(std::log(kFalseRows) / std::log(std::min(share, 0.999)) - 1e-9);
  return row > kMostRow ? 0 : std::max(kLeastRow, static_cast<uint32_t>(row));
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

bool ProbeJudge::is_marked(uint64_t content) const {
  return content != 0 && std::find(std::begin(marked_), std::end(marked_), content) != std::end(marked_);
}

uint32_t ProbeJudge::row_to_go() const {
  const double share = (own_ + kPriorFindings) / (controls_ + kPriorProbes);
  return row_for(share);
}

uint32_t ProbeJudge::row_of_proof() const {
  if (controls_ == own_) return 0;  // all were training's, or there were none
  return row_for(boost::math::binomial_distribution<>::find_upper_bound_on_p(controls_, own_, kUnsure));
}

void ProbeJudge::end_control() {
  const uint64_t evicted = std::exchange(evicted_, 0);
  if (is_marked(evicted) || row_of_proof() == 0) return;
  marked_[next_marked_] = evicted;
  next_marked_ = (next_marked_ + 1) % kMostMarked;
}

ProbeJudge::Decision ProbeJudge::evict(std::span<const ProbeSuspect> suspects, size_t victim, bool guilty,
                                       int64_t now_ns) {
  const Decision decision{victim, guilty, row_};
  if (evicted_ != 0) {  // these controls have shown somebody else's work, not training's
    controls_ -= std::min(row_, controls_);
    own_ -= std::min(row_, own_);
  }
  row_ = 0;
  evicted_ = suspects[victim].content;
  evicted_ns_ = now_ns;
  to_make_ = kControls;
  return decision;
}

ProbeJudge::Decision ProbeJudge::note(ProbeOutcome outcome, std::span<const ProbeSuspect> suspects, int64_t now_ns) {
  if (evicted_ != 0 && !controlling(now_ns)) end_control();
  if (outcome == ProbeOutcome::kUnknown || (evicted_ != 0 && now_ns - evicted_ns_ < kGoneNs)) return {};
  const bool found = outcome == ProbeOutcome::kFound;
  if (suspects.empty() || evicted_ != 0) {
    if (controls_ >= kMostControls) controls_ /= 2, own_ /= 2;  // what training did long ago counts less
    ++controls_;
    own_ += found ? 1 : 0;
    if (evicted_ != 0 && --to_make_ == 0) end_control();
  }
  row_ = found && !suspects.empty() ? row_ + 1 : 0;
  if (row_ == 0) return {};
  const auto latest = [&](bool marked) {
    size_t who = kNobody;
    for (size_t i = 0; i < suspects.size(); ++i) {
      const bool later = who == kNobody || suspects[i].last_served > suspects[who].last_served;
      if (later && (!marked || is_marked(suspects[i].content))) who = i;
    }
    return who;
  };
  const auto enough = [&](uint32_t row) { return row != 0 && row_ >= row; };
  // Whoever has been it before is it again rather than somebody else.
  const size_t again = latest(true);
  const uint32_t proof = row_of_proof();
  if (again != kNobody && proof != 0) return enough(proof) ? evict(suspects, again, true, now_ns) : Decision{};
  return enough(row_to_go()) ? evict(suspects, again != kNobody ? again : latest(false), false, now_ns) : Decision{};
}

void ProbeJudge::training_changed() {
  row_ = controls_ = own_ = 0;
  evicted_ = 0;
}

}  // namespace freeride::policy
