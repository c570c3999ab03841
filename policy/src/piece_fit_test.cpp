#include "freeride/policy/piece_fit.hpp"

#include <catch2/catch.hpp>

using freeride::policy::PieceFit;

namespace {

constexpr int64_t kMs = 1'000'000;

/// A fake clock under a sequence of bubbles, and a task whose steps consist of the pieces given.
struct Bubbles {
  int64_t now_ns = 0, bubble_ns, gap_ns;
  std::vector<int64_t> pieces_ns;
  PieceFit fit;
  size_t piece = 0;
  int steps = 0, longest_overrun_ns = 0, overruns = 0;

  // One bubble: pieces run while they fit, the rest of a step goes on in the next one.
  void bubble() {
    const int64_t end_ns = now_ns + bubble_ns;
    bool first = true;
    while (fit.fits(end_ns - now_ns, first)) {
      first = false;
      now_ns += pieces_ns[piece];
      longest_overrun_ns = std::max<int64_t>(longest_overrun_ns, now_ns - end_ns);
      if (now_ns > end_ns) ++overruns;
      if (piece + 1 == pieces_ns.size()) {
        fit.step_done(pieces_ns[piece]);
        piece = 0;
        ++steps;
      } else {
        fit.piece_done(pieces_ns[piece++]);
      }
    }
    if (first) fit.lease_skipped();
    now_ns = std::max(now_ns, end_ns) + gap_ns;
  }
};

}  // namespace

TEST_CASE("a step of 60 ms is done in bubbles of 25 ms, piece by piece") {
  Bubbles bubbles{0, 25 * kMs, 10 * kMs, std::vector<int64_t>(6, 10 * kMs), {}};
  for (int i = 0; i < 30; ++i) bubbles.bubble();
  CHECK(bubbles.steps == 10);  // two pieces a bubble, from the first on
  CHECK(bubbles.longest_overrun_ns == 0);
  CHECK(bubbles.fit.quantile_ns(0.5) == 60 * kMs);
  CHECK(bubbles.fit.piece_quantiles_ns(0.5) == std::vector<int64_t>(6, 10 * kMs));
}

TEST_CASE("pieces are learned by their place in the step") {
  PieceFit fit;
  for (int i = 0; i < 10; ++i) {
    fit.piece_done(2 * kMs);
    fit.step_done(30 * kMs);
  }
  CHECK(fit.fits(3 * kMs, false));
  fit.piece_done(2 * kMs);
  CHECK_FALSE(fit.fits(20 * kMs, true));  // known, and too long
  CHECK(fit.fits(40 * kMs, false));
  CHECK(fit.executed_ns() == 2 * kMs);
}

TEST_CASE("an unknown piece is taken for the longest known one of its step") {
  PieceFit fit;
  CHECK(fit.fits(1, true));
  CHECK_FALSE(fit.fits(100 * kMs, false));  // of the first piece nothing is known
  fit.piece_done(10 * kMs);
  fit.piece_done(3 * kMs);
  CHECK_FALSE(fit.fits(9 * kMs, false));
  CHECK(fit.fits(12 * kMs, false));
  CHECK(fit.fits(9 * kMs, true));  // nothing better can come than a fresh lease
}

TEST_CASE("two pieces that were not parted are learned by what each was expected to take") {
  PieceFit fit;
  CHECK(fit.predicted_two_ns(false) == 0);
  for (int i = 0; i < 16; ++i) {
    fit.piece_done(1 * kMs);
    CHECK(fit.predicted_two_ns(false) == 0);  // there is no piece after the last
    fit.step_done(3 * kMs);
  }
  const int64_t two_ns = fit.predicted_two_ns(false);
  CHECK(two_ns >= 4 * kMs);
  for (int i = 0; i < 64; ++i) fit.last_two_done(8 * kMs, false);
  CHECK(fit.predicted_two_ns(false) >= 8 * kMs);
  CHECK(fit.quantile_ns(0.5) == 8 * kMs);
  CHECK(fit.predicted_ns() > kMs);
  CHECK(fit.predicted_ns() < 3 * kMs);
}

TEST_CASE("a piece takes longer alone than behind another one, and is admitted by what it takes then") {
  PieceFit fit;
  for (int i = 0; i < 40; ++i) {
    fit.piece_done(3 * kMs);  // launched on an idle GPU
    fit.piece_done(2 * kMs, true);
    i % 4 == 0 ? fit.piece_done(3 * kMs) : fit.piece_done(2 * kMs, true);
    fit.last_two_done(4 * kMs, true);
  }
  // The first piece has always been alone, the second one never, the third one now and then.
  CHECK(fit.fits(3100 * kMs / 1000, false));
  CHECK_FALSE(fit.fits(2900 * kMs / 1000, false));
  CHECK(fit.predicted_two_ns(false) < 5200 * kMs / 1000);
  CHECK(fit.predicted_two_ns(false) >= 5 * kMs);
  fit.piece_done(3 * kMs);
  CHECK(fit.predicted_two_ns(true) < 4200 * kMs / 1000);
  fit.piece_done(2 * kMs, true);
  CHECK_FALSE(fit.fits(2900 * kMs / 1000, false));
  CHECK(fit.predicted_two_ns(true) < 4200 * kMs / 1000);
  CHECK(fit.predicted_two_ns(false) >= 5 * kMs);
  CHECK(fit.piece_quantiles_ns(0.5).size() == 5);
}

TEST_CASE("a piece that has only been seen behind others, and never as short as a lease, is tried alone seldom") {
  PieceFit fit;
  for (int i = 0; i < 20; ++i) fit.piece_done(1 * kMs), fit.piece_done(4 * kMs, true), fit.step_done(1 * kMs);
  fit.piece_done(1 * kMs);
  for (int skipped = 0; skipped < 128; ++skipped) {
    REQUIRE_FALSE(fit.fits(3 * kMs, true));
    fit.lease_skipped();
  }
  CHECK(fit.fits(5 * kMs, true));
  CHECK(fit.predicted_two_ns(true) >= 5 * kMs);  // behind another one it is what it was
}

TEST_CASE("a piece that was seen a few times behind others is tried alone in the end") {
  PieceFit fit;
  for (int i = 0; i < 3; ++i) fit.piece_done(1 * kMs), fit.piece_done(4 * kMs, true), fit.step_done(1 * kMs);
  fit.piece_done(1 * kMs);
  int skipped = 0;
  for (; !fit.fits(3 * kMs, true) && skipped < 100; ++skipped) fit.lease_skipped();
  CHECK(skipped < 20);
}

TEST_CASE("by its profile a piece hardly overruns a lease that it does not fit") {
  Bubbles bubbles{0, 5 * kMs, 5 * kMs, {2 * kMs, 9 * kMs, 2 * kMs}, {}};
  bubbles.fit.seed(bubbles.pieces_ns);
  for (int i = 0; i < 1000; ++i) bubbles.bubble();
  CHECK(bubbles.overruns < 10);  // less than one of a hundred
  const int tries = bubbles.overruns, steps = bubbles.steps;
  bubbles.bubble_ns = 10 * kMs;
  for (int i = 0; i < 30; ++i) bubbles.bubble();
  CHECK(bubbles.overruns == tries);
  CHECK(bubbles.steps > steps + 10);
  CHECK(bubbles.fit.quantile_ns(0.5) == 13 * kMs);
}

TEST_CASE("a step that was given up begins with its first piece") {
  PieceFit fit;
  fit.piece_done(1 * kMs);
  fit.piece_done(9 * kMs);
  fit.step_abandoned();
  CHECK(fit.fits(2 * kMs, false));
  CHECK(fit.executed_ns() == 0);
}

TEST_CASE("the last place is shared by all pieces beyond it") {
  PieceFit fit;
  for (size_t i = 0; i < PieceFit::kMostPieces + 50; ++i) fit.piece_done(kMs);
  fit.step_done(kMs);
  CHECK(fit.piece_quantiles_ns(0.5).size() == PieceFit::kMostPieces);
  CHECK(fit.quantile_ns(0.5) == static_cast<int64_t>(PieceFit::kMostPieces + 51) * kMs);
}

TEST_CASE("a piece of which nothing is known is tried a few times, then seldom, as a step is") {
  Bubbles bubbles{0, 25 * kMs, 10 * kMs, {10 * kMs, 40 * kMs}, {}};
  for (int i = 0; i < 5000; ++i) bubbles.bubble();
  CHECK(bubbles.steps > 1);
  CHECK(bubbles.overruns == bubbles.steps);
  CHECK(bubbles.steps >= static_cast<int>(freeride::policy::StepFit::Options().enough));
  CHECK(bubbles.steps < 20);
}
