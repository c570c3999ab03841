#include "admission.hpp"

#include <algorithm>

#include "freeride/base/time.hpp"
#include "limits.hpp"

namespace freeride::runner {
namespace {

// A try may take all of the grace period but this part of it: by what is known it is over before it is killed for.
constexpr int64_t kTryShareOfGrace = 10;
// Between two leases of one training.
constexpr uint32_t kMostIterations = 10'000;

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

Admission::Admission(const Job& job) : Admission(known_of(job), job.by_cpu_clock() || job.gated) {
  gated_ = job.gated;
}

Admission::Pass Admission::may_pass(int64_t now_ns, int64_t until_ns, bool first) {
  if (stops_anywhere_ || until_ns == 0) return Pass::kWhole;
  const int64_t room_ns = until_ns - now_ns;
  if (first && pieces_.predicted_ns() == 0) return Pass::kWhole;
  const bool fits = pieces_.fits(room_ns, false);
  if (!first) return fits ? Pass::kWhole : Pass::kNo;
  constexpr double kRemembered = 63.0 / 64.0;  // some iterations of training
  constexpr int64_t kMostPieces = 4;           // a lease without training is as long as it likes
  long_enough_ns_ *= kRemembered;
  too_short_ns_ *= kRemembered;
  (fits ? long_enough_ns_ : too_short_ns_) +=
      static_cast<double>(std::clamp<int64_t>(room_ns, 0, kMostPieces * pieces_.predicted_ns()));
  if (fits) return Pass::kWhole;
  return too_short_ns_ >= long_enough_ns_ ? Pass::kCut : Pass::kNo;
}

void Admission::sees(const pages::Lease& lease) {
  if (gate_ || lease.iteration == 0) return;
  const uint32_t before = std::exchange(iteration_, lease.iteration);
  // Fewer than before, or a leap: another training.
  const uint32_t passed = before == 0 ? 0 : lease.iteration - before;
  const int64_t most_ns = as_time(lease.grace_ns) / kTryShareOfGrace * (kTryShareOfGrace - 1);
  pieces_.save_up(passed <= kMostIterations ? passed : 0, most_ns);
}

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

int64_t Admission::close_ahead_ns() const {
  return gated_ ? std::min(pauses_.full_ns(), kLeastGateNs) : pauses_.full_ns();
}

// On a GPU twice what it mostly needs: there a stop does not end what is executing, and what is not seen would be
// learned too short. That once a piece: of one that is longer than leases are it says nothing, and is not waited for.
int64_t Admission::patience_ns(bool stuck) const {
  return stuck || gated_ ? kLeastGateNs : (stops_anywhere_ ? 1 : 2) * std::max(pauses_.full_ns(), kLeastGateNs);
}

}  // namespace freeride::runner
