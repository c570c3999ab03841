#include "freeride/policy/piece_fit.hpp"

#include <algorithm>

namespace freeride::policy {

void PieceFit::piece_done(int64_t duration_ns) {
  pieces_[at_].record(duration_ns);
  executed_ns_ += duration_ns;
  if (at_ + 1 == kMostPieces) return;
  ++at_;
  if (at_ == pieces_.size()) pieces_.emplace_back();
}

void PieceFit::step_done(int64_t duration_ns) {
  pieces_[at_].record(duration_ns);
  // The steps' own window begins empty where the first steps had one piece: those are in the first piece's.
  if (at_ > 0) steps_.record(executed_ns_ + duration_ns);
  step_abandoned();
}

void PieceFit::last_two_done(int64_t duration_ns) {
  const int64_t two_ns = predicted_two_ns();
  // Shared out as they are expected to take; each is learned by itself again whenever a lease ends between them.
  const double share = two_ns > 0 ? static_cast<double>(predicted_ns()) / static_cast<double>(two_ns) : 0.5;
  const auto first_ns = static_cast<int64_t>(share * static_cast<double>(duration_ns));
  piece_done(first_ns);
  step_done(duration_ns - first_ns);
}

void PieceFit::step_abandoned() {
  at_ = 0;
  executed_ns_ = 0;
}

bool PieceFit::fits(int64_t remaining_ns, bool first) const {
  if (pieces_[at_].samples() != 0 || at_ == 0) return pieces_[at_].fits(remaining_ns, first);
  const int64_t expected_ns = predicted_ns();
  return remaining_ns > 0 && (first || expected_ns <= remaining_ns);
}

int64_t PieceFit::predicted_ns() const {
  if (pieces_[at_].samples() != 0) return pieces_[at_].predicted_ns();
  int64_t longest_ns = 0;
  for (size_t i = 0; i < at_; ++i) longest_ns = std::max(longest_ns, pieces_[i].predicted_ns());
  return longest_ns;
}

int64_t PieceFit::predicted_two_ns() const {
  const size_t next = std::min(at_ + 1, kMostPieces - 1);
  if (next >= pieces_.size() || pieces_[at_].samples() == 0 || pieces_[next].samples() == 0) return 0;
  return pieces_[at_].predicted_ns() + pieces_[next].predicted_ns();
}

std::vector<int64_t> PieceFit::piece_quantiles_ns(double q) const {
  std::vector<int64_t> all;
  for (const StepFit& piece : pieces_) {
    if (piece.samples() != 0) all.push_back(piece.quantile_ns(q));
  }
  return all;
}

}  // namespace freeride::policy
