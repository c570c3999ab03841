#include "freeride/policy/step_fit.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

using freeride::policy::StepFit;

namespace {

constexpr int64_t kUs = 1'000;
constexpr int64_t kMs = 1'000'000;

// Leases of `lease_ns`, none with a step, until one is admitted; how many were skipped.
int skipped_until_admitted(StepFit& fit, int64_t lease_ns, int most = 100'000) {
  for (int skipped = 0; skipped < most; ++skipped) {
    if (fit.fits(lease_ns, true)) return skipped;
    fit.lease_skipped();
  }
  return most;
}

}  // namespace

TEST_CASE("step fit: with nothing known only the first step of a lease is admitted") {
  StepFit fit;
  CHECK(fit.predicted_ns() == 0);
  CHECK(fit.fits(1, true));
  CHECK_FALSE(fit.fits(kMs, false));
  CHECK_FALSE(fit.fits(0, true));
  CHECK_FALSE(fit.fits(-5, true));
}

TEST_CASE("step fit: a regular task fills its lease, an irregular one keeps a margin") {
  StepFit fit;
  fit.record(kMs);
  CHECK(fit.predicted_ns() == static_cast<int64_t>(1.05 * kMs) + 20 * kUs);  // little is known
  for (int i = 0; i < 100; ++i) fit.record(kMs);
  CHECK(fit.predicted_ns() == kMs + 20 * kUs);
  CHECK(fit.fits(1020 * kUs, false));
  CHECK_FALSE(fit.fits(1019 * kUs, true));
  for (int i = 0; i < 32; ++i) fit.record(kMs + i % 8 * 4 * kUs);  // 1.000 to 1.028 ms
  CHECK(fit.predicted_ns() > 1040 * kUs);
  CHECK(fit.predicted_ns() < 1070 * kUs);
  for (int i = 0; i < 32; ++i) fit.record(i % 3 == 0 ? 2 * kMs : kMs);
  CHECK(fit.predicted_ns() == static_cast<int64_t>(1.05 * 2 * kMs) + 20 * kUs);  // no more than that
}

TEST_CASE("step fit: the quantile matches an independent one, whatever comes in") {
  std::mt19937 random(1);
  StepFit fit;
  std::vector<int64_t> all;
  for (int i = 0; i < 500; ++i) {
    const int64_t duration = static_cast<int64_t>(random() % 7) * 100 * kUs;  // many equal ones
    fit.record(duration);
    all.push_back(duration);
    std::vector<int64_t> window(all.end() - std::min<ptrdiff_t>(StepFit::kWindow, all.size()), all.end());
    std::sort(window.begin(), window.end());
    REQUIRE(fit.quantile_ns(0) == window.front());
    REQUIRE(fit.quantile_ns(1) == window.back());
    const auto at = static_cast<size_t>(0.9 * static_cast<double>(window.size() - 1) + 0.999999);
    REQUIRE(fit.quantile_ns(0.9) == window[std::min(at, window.size() - 1)]);
  }
}

TEST_CASE("step fit: one outlier among many changes nothing, a new level is learned within a window") {
  StepFit fit;
  for (int i = 0; i < 32; ++i) fit.record(kMs);
  fit.record(500 * kMs);
  CHECK(fit.fits(2 * kMs, false));
  for (int i = 0; i < 32; ++i) fit.record(4 * kMs);
  CHECK_FALSE(fit.fits(4 * kMs, false));
  CHECK(fit.fits(5 * kMs, false));
  for (int i = 0; i < 32; ++i) fit.record(kMs);
  CHECK(fit.fits(2 * kMs, false));
}

TEST_CASE("step fit: a slow first step does not starve the task for ever") {
  StepFit fit;
  fit.record(500 * kMs);  // everything was touched for the first time
  const int skipped = skipped_until_admitted(fit, 20 * kMs);
  CHECK(skipped >= 4);
  CHECK(skipped < 20);
  for (int i = 0; i < 40; ++i) fit.record(kMs);
  CHECK(fit.fits(2 * kMs, false));
}

TEST_CASE("step fit: a burst of slow steps decays to the median, then to the minimum") {
  StepFit fit;
  for (int i = 0; i < 20; ++i) fit.record(kMs);
  for (int i = 0; i < 12; ++i) fit.record(50 * kMs);
  CHECK_FALSE(fit.fits(5 * kMs, true));
  CHECK(skipped_until_admitted(fit, 5 * kMs) == 4);  // the median fits
  StepFit mostly_slow;
  for (int i = 0; i < 8; ++i) mostly_slow.record(kMs);
  for (int i = 0; i < 24; ++i) mostly_slow.record(50 * kMs);
  CHECK(skipped_until_admitted(mostly_slow, 5 * kMs) == 5);  // only the minimum does
}

TEST_CASE("step fit: a task that is truly too long is tried ever less often") {
  StepFit fit;
  fit.record(100 * kMs);
  int before = 0;
  for (int i = 0; i < 12; ++i) {
    const int skipped = skipped_until_admitted(fit, 10 * kMs);
    CHECK(skipped >= before);
    before = skipped;
    fit.record(100 * kMs);
  }
  CHECK(before > static_cast<int>(StepFit::kMostPatience));
  CHECK(before < 2 * static_cast<int>(StepFit::kMostPatience));
  CHECK(fit.fits(106 * kMs, true));  // in a longer bubble it goes on
}

TEST_CASE("step fit: what has never been so short is tried seldom, what was so once is soon") {
  StepFit fit;
  for (int i = 0; i < 8; ++i) fit.record((9 + i % 2) * kMs);
  CHECK(skipped_until_admitted(fit, 5 * kMs) > 128);
  StepFit slow;
  slow.record(4 * kMs);
  for (int i = 0; i < 31; ++i) slow.record(9 * kMs);
  CHECK(skipped_until_admitted(slow, 5 * kMs) < 8);
}

TEST_CASE("step fit: what a profile has seen is tried in a shorter lease seldom: it may have been slow") {
  StepFit fit;
  fit.seed(9 * kMs);
  CHECK(fit.fits(10 * kMs, true));
  const int skipped = skipped_until_admitted(fit, 5 * kMs);
  CHECK(skipped > 128);
  CHECK(skipped < 200);
  for (int i = 0; i < 32; ++i) fit.record(4 * kMs);  // in such leases it turned out to be shorter
  CHECK(fit.fits(5 * kMs, true));
}

TEST_CASE("step fit: a try that was right restores the patience") {
  StepFit fit;
  fit.record(100 * kMs);
  for (int i = 0; i < 3; ++i) {
    skipped_until_admitted(fit, 10 * kMs);
    fit.record(100 * kMs);
  }
  CHECK(skipped_until_admitted(fit, 10 * kMs) > 20);
  for (int i = 0; i < 32; ++i) fit.record(kUs);
  CHECK(fit.fits(10 * kMs, true));
}

TEST_CASE("step fit: durations that cannot be do no harm") {
  StepFit fit;
  fit.record(-1);
  fit.record(INT64_MIN);
  CHECK(fit.predicted_ns() == 20 * kUs);
  CHECK(fit.quantile_ns(7.0) == 0);
}

TEST_CASE("step fit: what a try had room for says whether it was wrong") {
  StepFit::Options options;
  options.patience = 1;
  options.enough = 100;
  StepFit fit(options);
  fit.record(40 * kMs);
  for (int round = 0; round < 4; ++round) {
    CHECK(skipped_until_admitted(fit, 10 * kMs) < 8);
    CHECK(fit.full_ns() > 10 * kMs);
    fit.record(9 * kMs, 10 * kMs);  // longer than was predicted, and in time
    CHECK_FALSE(fit.fits(10 * kMs, true));
  }
  int before = 0;
  for (int round = 0; round < 4; ++round) {
    const int skipped = skipped_until_admitted(fit, 5 * kMs);
    CHECK(skipped > before);
    before = skipped;
    fit.record(9 * kMs, 5 * kMs);
    fit.record(9 * kMs, INT64_MAX);  // a longer lease, which forgives nothing
  }
}

TEST_CASE("step fit: one that keeps trying skips nothing more after a try that was right") {
  StepFit::Options options;
  options.patience = 1;
  options.keeps_trying = true;
  StepFit fit(options);
  for (int i = 0; i < 32; ++i) fit.record(40 * kMs);
  skipped_until_admitted(fit, 10 * kMs);
  int tries = 0;
  for (; fit.full_ns() > 10 * kMs && tries < 100; ++tries) {
    CHECK(fit.fits(10 * kMs, true));
    fit.record(9 * kMs, 10 * kMs);
  }
  CHECK(tries > 20);  // until the window has no more slow ones than its quantile leaves out
  CHECK(tries <= 32);
  CHECK(fit.fits(10 * kMs, true));
  for (int i = 0; i < 32; ++i) fit.record(40 * kMs, INT64_MAX);
  skipped_until_admitted(fit, 10 * kMs);
  fit.record(20 * kMs, 10 * kMs);  // wrong
  CHECK_FALSE(fit.fits(10 * kMs, true));
}

namespace {

// A stage of a 1F1B pipeline on a fake clock: iterations of 244 ms with bubbles of these lengths, and a task whose
// steps take `step_ns`, of which a profile has said something else.
struct Stage {
  StepFit fit;
  int64_t step_ns;
  int64_t overrun_ns = 0;
  uint64_t steps = 0, iterations = 0, tries = 0;
  std::vector<int64_t> bubbles_ns{4 * kMs, 10 * kMs, 6 * kMs};

  void iterate() {
    ++iterations;
    fit.save_up(1, 90 * kMs);
    for (const int64_t bubble_ns : bubbles_ns) {
      int64_t room_ns = bubble_ns;
      if (!fit.fits(room_ns, true)) {
        fit.lease_skipped();
        continue;
      }
      for (bool first = true; fit.fits(room_ns, first); first = false) {
        if (room_ns < fit.full_ns()) ++tries;
        fit.begins(room_ns);
        fit.record(step_ns);
        ++steps;
        room_ns -= step_ns;
      }
      overrun_ns += std::max<int64_t>(0, -room_ns);
    }
  }
  double seconds() const { return static_cast<double>(iterations) * 0.244; }
};

}  // namespace

TEST_CASE("step fit: a profile taken in a slow moment is corrected within a minute of iterations") {
  Stage stage{StepFit(), 3 * kMs};
  stage.fit.seed(89'800 * kUs);
  while (stage.steps == 0 && stage.seconds() < 60) stage.iterate();
  INFO("first step after " << stage.seconds() << " s");
  REQUIRE(stage.steps > 0);
  CHECK(stage.overrun_ns == 0);
  stage.iterate();
  // All that fits from the next iteration on: one step in 4 ms, three in 10, one in 6, margins kept.
  const uint64_t before = stage.steps;
  stage.iterate();
  CHECK(stage.steps - before >= 4);
  CHECK(stage.overrun_ns == 0);
}

TEST_CASE("step fit: the first try of what a profile says to be too long is made in the longest bubble") {
  Stage stage{StepFit(), 3 * kMs};
  stage.fit.seed(89'800 * kUs);
  stage.bubbles_ns = {10 * kMs, 5 * kMs};
  while (stage.tries == 0 && stage.iterations < 1000) stage.iterate();
  // Saved: what it would take past 10 ms, not past 5.
  CHECK(stage.iterations * static_cast<uint64_t>(kMs) < static_cast<uint64_t>(stage.fit.kMostSavedNs));
  CHECK(stage.iterations >= 84);
  CHECK(stage.iterations <= 86);
}

TEST_CASE("step fit: a profile that is true stays out, at a cost of at most 1 ms an iteration, and ever less") {
  Stage stage{StepFit(), 89'800 * kUs};
  stage.fit.seed(89'800 * kUs);
  int64_t worst_ns = 0;
  for (int i = 0; i < 20'000; ++i) {
    stage.iterate();
    REQUIRE(stage.overrun_ns <= static_cast<int64_t>(stage.iterations) * StepFit::kSavedPerIterationNs);
    if (i == 9'999) worst_ns = stage.overrun_ns;
  }
  CHECK(stage.tries > 2);
  CHECK(stage.tries < 12);
  CHECK(stage.overrun_ns - worst_ns <= worst_ns / 2);  // the second half costs less than half of the first
  CHECK(stage.fit.fits(95 * kMs, true));
}

TEST_CASE("step fit: what a try could be killed for is not risked, whatever has been saved") {
  Stage stage{StepFit(), 500 * kMs};
  stage.fit.seed(500 * kMs);
  for (int i = 0; i < 5'000; ++i) stage.iterate();
  CHECK(stage.steps == 0);
  CHECK(stage.overrun_ns == 0);
}

TEST_CASE("step fit: slow first steps of its own cost no more than what is saved, and are got over") {
  Stage stage{StepFit(), 2 * kMs};
  for (int i = 0; i < 8; ++i) stage.fit.record(60 * kMs);
  while (stage.steps == 0 && stage.seconds() < 60) stage.iterate();
  REQUIRE(stage.steps > 0);
  for (int i = 0; i < 30; ++i) stage.iterate();
  CHECK(stage.overrun_ns <= static_cast<int64_t>(stage.iterations) * StepFit::kSavedPerIterationNs);
  const uint64_t before = stage.steps;
  stage.iterate();
  CHECK(stage.steps - before >= 6);
}

TEST_CASE("step fit: a try that was wrong is paid for before the next, though little has been seen") {
  Stage stage{StepFit(), 50 * kMs};
  stage.fit.record(80 * kMs);
  for (int i = 0; i < 2'000; ++i) stage.iterate();
  CHECK(stage.tries > 0);
  CHECK(stage.overrun_ns <= static_cast<int64_t>(stage.iterations) * StepFit::kSavedPerIterationNs + 90 * kMs);
}
