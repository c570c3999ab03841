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
