#include "admission.hpp"

#include <algorithm>

#include "limits.hpp"

namespace freeride::runner {
namespace {

// What its profile says stands for one step that was made, so that the first lease is not spent on finding out; what is
// seen here soon outweighs it. On a GPU what by its profile never was as short as a lease is seldom tried in it; on a
// CPU, where a profile is as long as others let it be, it soon is.
policy::PieceFit known_of(const Job& job) {
  policy::PieceFit known;
  const auto& pieces = job.predicted_pieces_ns;
  if (job.by_cpu_clock()) {
    for (size_t i = 0; i + 1 < pieces.size(); ++i) known.piece_done(pieces[i]);
    const int64_t last_ns = pieces.empty() ? job.predicted_step_ns : pieces.back();
    if (last_ns > 0) known.step_done(last_ns);
  } else if (!pieces.empty()) {
    known.seed(pieces);
  } else if (job.predicted_step_ns > 0) {
    known.seed({job.predicted_step_ns});
  }
  return known;
}

}  // namespace

Admission::Admission(const Job& job) : Admission(known_of(job), job.by_cpu_clock()) {}

void Admission::step_done(int64_t took_ns) {
  if (ahead_) {
    pieces_.last_two_done(took_ns, behind_);
  } else {
    pieces_.step_done(took_ns);
  }
  ahead_ = behind_ = false;
}

void Admission::step_given_up() {
  pieces_.step_abandoned();
  ahead_ = behind_ = false;
}

void Admission::use_gate() {
  gate_ = true;
  pieces_ = {};
}

Admission::Opening Admission::opening(int64_t now_ns, int64_t deadline_ns, bool stuck) const {
  if (close_at_ns(deadline_ns) > now_ns) return Opening::kOpen;
  if (stuck) return Opening::kRest;
  return pauses_.fits(deadline_ns - now_ns, true) ? Opening::kOnce : Opening::kNone;
}

// On a GPU twice what it mostly needs: there a stop does not end what is executing, and what is not seen would be
// learned too short. That once a piece: of one that is longer than leases are it says nothing, and is not waited for.
int64_t Admission::patience_ns(bool stuck) const {
  return stuck ? kLeastGateNs : (stops_anywhere_ ? 1 : 2) * std::max(pauses_.full_ns(), kLeastGateNs);
}

}  // namespace freeride::runner
