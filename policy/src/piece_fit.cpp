#include "freeride/policy/piece_fit.hpp"

#include <algorithm>

namespace freeride::policy {

const StepFit& PieceFit::known(size_t at, bool behind) const {
  if (at >= behind_.size() || behind_[at].samples() == 0) return pieces_[at];
  return behind || pieces_[at].samples() == 0 ? behind_[at] : pieces_[at];
}

void PieceFit::seed(const std::vector<int64_t>& pieces_ns) {
  const size_t count = std::min(pieces_ns.size(), kMostPieces);
  if (count > pieces_.size()) pieces_.resize(count);
  int64_t step_ns = 0;
  for (size_t i = 0; i < count; ++i) pieces_[i].seed(pieces_ns[i]), step_ns += pieces_ns[i];
  if (count > 1) steps_.record(step_ns);
}

void PieceFit::record(int64_t duration_ns, bool behind) {
  if (behind && at_ >= behind_.size()) behind_.resize(at_ + 1);
  (behind ? behind_ : pieces_)[at_].record(duration_ns);
}

void PieceFit::piece_done(int64_t duration_ns, bool behind) {
  record(duration_ns, behind);
  executed_ns_ += duration_ns;
  piece_unseen();
}

void PieceFit::piece_unseen() {
  if (at_ + 1 == kMostPieces) return;
  ++at_;
  if (at_ == pieces_.size()) pieces_.emplace_back();
}

void PieceFit::step_done(int64_t duration_ns) {
  end_step(duration_ns, false);
}

void PieceFit::end_step(int64_t duration_ns, bool behind) {
  record(duration_ns, behind);
  // The steps' own window begins empty where the first steps had one piece: those are in the first piece's.
  if (at_ > 0) steps_.record(executed_ns_ + duration_ns);
  step_abandoned();
}

void PieceFit::last_two_done(int64_t duration_ns, bool behind) {
  const int64_t two_ns = predicted_two_ns(behind);
  // Shared out as they are expected to take; each is learned by itself again whenever a lease ends between them.
  const double share =
      two_ns > 0 ? static_cast<double>(known(at_, behind).predicted_ns()) / static_cast<double>(two_ns) : 0.5;
  const auto first_ns = static_cast<int64_t>(share * static_cast<double>(duration_ns));
  piece_done(first_ns, behind);
  end_step(duration_ns - first_ns, true);
}

void PieceFit::step_abandoned() {
  at_ = 0;
  executed_ns_ = 0;
}

bool PieceFit::fits(int64_t remaining_ns, bool first) const {
  const StepFit& piece = known(at_, false);
  if (piece.samples() != 0 || at_ == 0) return piece.fits(remaining_ns, first);
  const int64_t expected_ns = predicted_ns();
  return remaining_ns > 0 && (first || expected_ns <= remaining_ns);
}

StepFit& PieceFit::alone(size_t at) {
  if (pieces_[at].samples() == 0 && known(at, false).samples() != 0) pieces_[at].seed(known(at, false));
  return pieces_[at];
}

void PieceFit::lease_skipped() {
  alone(at_).lease_skipped();
}

int64_t PieceFit::predicted_ns() const {
  if (known(at_, false).samples() != 0) return known(at_, false).predicted_ns();
  int64_t longest_ns = 0;
  for (size_t i = 0; i < at_; ++i) longest_ns = std::max(longest_ns, known(i, false).predicted_ns());
  return longest_ns;
}

int64_t PieceFit::predicted_two_ns(bool behind) const {
  const size_t next = std::min(at_ + 1, kMostPieces - 1);
  if (next >= pieces_.size()) return 0;
  const StepFit &present = known(at_, behind), &queued = known(next, true);
  if (present.samples() == 0 || queued.samples() == 0) return 0;
  return present.predicted_ns() + queued.predicted_ns();
}

std::vector<int64_t> PieceFit::piece_quantiles_ns(double q) const {
  std::vector<int64_t> all;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (known(i, false).samples() != 0) all.push_back(known(i, false).quantile_ns(q));
  }
  return all;
}

}  // namespace freeride::policy
