// Admission: whether the next step, or the next piece of one, may begin in what is left of a lease.
#pragma once

#include <cstdint>
#include <utility>

#include "freeride/pages/mapping.hpp"
#include "freeride/policy/piece_fit.hpp"
#include "job.hpp"

namespace freeride::runner {

/// The one place that is asked, by both interfaces, and that is told how long things took (policy::PieceFit,
/// policy::StepFit). Constant time, no allocation but for a step with more pieces than any before; nothing blocks.
///
/// Threads: pieces belong to the thread that executes them, so to main in the iterative interface and to the workload's
/// in the imperative one. The gate belongs to main. The two share no variable.
class Admission {
 public:
  /// `known` of a step's pieces, by its profile. `stops_anywhere`: a stop ends what is executing (on a CPU, and
  /// behind the shim of libcuda), so the rest of a lease need not be left unused by a workload.
  explicit Admission(policy::PieceFit known = {}, bool stops_anywhere = false)
      : pieces_(std::move(known)), stops_anywhere_(stops_anywhere) {}
  explicit Admission(const Job& job);

  // ---- pieces

  /// May the next step or piece begin, with `room_ns` until its lease's deadline? `first`: nothing has been executed
  /// under that lease.
  bool may_begin(int64_t room_ns, bool first) const { return pieces_.fits(room_ns, first); }
  enum class Pass {
    kNo,
    kWhole,  ///< it is expected to be done in time, or nobody knows
    kCut,    ///< it is not: it is stopped in its middle and goes on in the next leases
  };
  /// May a workload's next piece pass the open gate? What does not fit may as a lease's first: a workload may be cut
  /// into nothing shorter. But what it has queued on a GPU by then is overrun, so leases that are too short are left
  /// alone while those that are not are most of the time. `until_ns`: when the gate is going to be closed; 0: not
  /// known.
  Pass may_pass(int64_t now_ns, int64_t until_ns, bool first);
  /// May the next piece be queued on a GPU behind the present one, which began at `begun_ns`, so that both are done by
  /// `until_ns`? Two pieces and no more: so much is overrun where a bubble ends before it should.
  bool may_queue(int64_t begun_ns, int64_t until_ns) const {
    const int64_t two_ns = pieces_.predicted_two_ns(behind_);
    return two_ns > 0 && begun_ns + two_ns <= until_ns;
  }

  /// A lease in a bubble is there, of whatever the runner makes of it: what may be risked grows with the iterations.
  void sees(const pages::Lease& lease);
  /// A step, or a piece that is not queued, begins with `room_ns` until its lease's deadline.
  void begins(int64_t room_ns) { pieces_.begins(room_ns); }
  void step_begins() { ahead_ = behind_ = false; }
  /// The next piece is being queued, the present one is still on the GPU.
  void queued() { ahead_ = true; }
  /// Is one still on the GPU? From now on it is waited for.
  bool take_ahead() { return std::exchange(ahead_, false); }
  /// It is done, and the one that was queued behind it is the present one.
  void is_behind() { behind_ = true; }
  /// The present piece took `took_ns` and ended at a yield point.
  void piece_done(int64_t took_ns) { pieces_.piece_done(took_ns, std::exchange(behind_, false)); }
  /// The present piece took `took_ns`, with the one queued behind it where there is one, and ended the step.
  void step_done(int64_t took_ns);
  /// The step was given up, or nobody knows how long its last piece took.
  void step_given_up();
  /// What has been executed of the present step's pieces that are done.
  int64_t executed_ns() const { return pieces_.executed_ns(); }

  // ---- the gate of the imperative interface

  /// The task has a workload. What its profile knows is of whole leases, and so of no piece.
  void use_gate();

  enum class Opening {
    kNone,  ///< it stays closed: the lease is skipped
    kOpen,  ///< until close_at_ns()
    kOnce,  ///< for one piece, which by what was seen does not fit: the least that can show that it does
    kRest,  ///< not at all, but what was stopped in the middle of a piece goes on: it is long enough for several leases
  };
  /// What the gate does under a lease. `stuck`: the workload was stopped in the middle of a piece, and is still in it.
  Opening opening(int64_t now_ns, int64_t deadline_ns, bool stuck) const;
  /// When it is closed, so that PauseSideTask is over by the deadline: by what the recent pauses took, whatever has
  /// decayed. Where that fits, the rest of the lease is not put at risk. Behind the shim of libcuda nothing is: what
  /// is submitted is done by the deadline, so the workload has a moment to come to its gate, and is stopped wherever
  /// it is.
  int64_t close_at_ns(int64_t deadline_ns) const { return deadline_ns - close_ahead_ns(); }
  /// How long a workload whose lease was taken back is waited for at its gate, before it is stopped wherever it is.
  int64_t patience_ns(bool stuck) const;
  /// From the gate's closing to PauseSideTask's end. `room_ns` of a kOnce: what there was for it; else INT64_MAX.
  void pause_took(int64_t took_ns, int64_t room_ns) { pauses_.record(took_ns, room_ns); }

  // ---- both

  /// A lease ended, or was given up, without anything having fitted.
  void lease_skipped() { gate_ ? pauses_.lease_skipped() : pieces_.lease_skipped(); }
  /// What the next step, piece or pause is expected to take; 0 = not known.
  int64_t predicted_ns() const { return gate_ ? pauses_.predicted_ns() : pieces_.predicted_ns(); }
  /// Of whole steps; 0 where there are none.
  int64_t step_quantile_ns(double q) const { return gate_ ? 0 : pieces_.quantile_ns(q); }

 private:
  // A try costs training what one piece is longer than a lease, so it may come soon; each that does cost doubles the
  // distance to the next one.
  static constexpr policy::StepFit::Options kPauses = [] {
    policy::StepFit::Options options;
    options.patience = 1;
    options.keeps_trying = true;
    options.enough = policy::StepFit::kWindow / 2;  // a new thread's first pieces can take a second each
    return options;
  }();

  int64_t close_ahead_ns() const;

  policy::PieceFit pieces_;
  const bool stops_anywhere_;
  bool gated_ = false;      ///< behind the shim of libcuda
  bool ahead_ = false;      ///< the present piece is still on the GPU, and the one after it is being queued
  bool behind_ = false;     ///< the present piece was queued behind another one
  bool gate_ = false;       ///< written before there is a second thread
  uint32_t iteration_ = 0;  ///< of the last lease that told one
  // Of recent leases, by their first piece: how long those are that it fits, and the others. The workload's thread's.
  double long_enough_ns_ = 0, too_short_ns_ = 0;
  policy::StepFit pauses_{kPauses};
};

}  // namespace freeride::runner
