// Whether a side task's next piece of work fits the rest of a lease, where a step has yield points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "freeride/policy/step_fit.hpp"

namespace freeride::policy {

/// A step is one or more pieces, parted by its yield points; each is learned by its place in the step, as StepFit
/// learns steps. A step without yield points is its only piece. A piece that was never seen is expected to take as long
/// as the longest known piece of this step. So only the first piece of all is started without knowing anything.
///
/// A piece that was queued on a GPU behind another one is learned apart from the same piece alone, which waits for the
/// host to launch it. The last piece of a lease is alone: judged by the others' durations it would be overrun.
///
/// Constant time per call; allocates only when a step turns out to have more pieces than any before. Not thread-safe:
/// the runner's main thread owns it.
class PieceFit {
 public:
  /// Pieces told apart; later ones of a step are learned together with the last.
  static constexpr size_t kMostPieces = 256;

  PieceFit() : pieces_(1) {}

  /// What a profile says of a step's pieces, by place: before any was seen here.
  void seed(const std::vector<int64_t>& pieces_ns);

  /// The present piece has taken `duration_ns` and ended at a yield point: the next one is present. `behind`: it was
  /// queued behind another one.
  void piece_done(int64_t duration_ns, bool behind = false);
  /// The present piece has taken `duration_ns` and ended the step: the next step's first piece is present.
  void step_done(int64_t duration_ns);
  /// The present piece and the one that was queued behind it have together taken `duration_ns` and ended the step.
  void last_two_done(int64_t duration_ns, bool behind);
  /// The present piece has ended at a yield point, and nobody knows how long it took by itself.
  void piece_unseen();
  /// The step was given up at a yield point: it begins again with its first piece.
  void step_abandoned();

  /// As StepFit::save_up() and begins(), of the present piece: what is saved is saved once for the whole step.
  void save_up(uint64_t iterations, int64_t most_ns) { pieces_[at_].save_up(iterations, most_ns); }
  void begins(int64_t room_ns) { pieces_[at_].begins(room_ns); }
  /// May the present piece start, alone? As StepFit::fits().
  bool fits(int64_t remaining_ns, bool first) const;
  /// A lease ended, or was given up, without the present piece having fitted.
  void lease_skipped();
  /// What the present piece is expected to take alone, ns; 0 = not known.
  int64_t predicted_ns() const;
  /// What the present piece and one behind it are expected to take; 0 = one of them has not been seen yet.
  int64_t predicted_two_ns(bool behind) const;

  /// Of whole steps: what was executed in them.
  int64_t quantile_ns(double q) const {
    return steps_.samples() != 0 ? steps_.quantile_ns(q) : pieces_[0].quantile_ns(q);
  }
  /// The quantile of each piece, by place.
  std::vector<int64_t> piece_quantiles_ns(double q) const;
  /// What has been executed of the present step's pieces that are done.
  int64_t executed_ns() const { return executed_ns_; }

 private:
  void record(int64_t duration_ns, bool behind);
  void end_step(int64_t duration_ns, bool behind);
  // What is known of the piece at this place; of the same in the other way, where it has never been seen in this one.
  const StepFit& known(size_t at, bool behind) const;
  // What is learned of the piece alone: from now on that is what counts.
  StepFit& alone(size_t at);

  std::vector<StepFit> pieces_;  ///< by place in the step; never empty
  std::vector<StepFit> behind_;  ///< the same, queued behind another one; as many as have been
  StepFit steps_;                ///< whole steps; recorded only where steps have several pieces
  size_t at_ = 0;                ///< the present piece
  int64_t executed_ns_ = 0;
};

}  // namespace freeride::policy
