#include "phase_book.hpp"

#include <catch2/catch.hpp>

#include "freeride/base/clock.hpp"
#include "job.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

bus::PhaseTotals totals(const std::string& phase, int64_t idle_ns, int64_t harvested_ns) {
  bus::PhaseTotals made;
  made.phase = phase;
  made.count = 1;
  made.idle_ns = idle_ns;
  made.harvested_ns = harvested_ns;
  return made;
}

}  // namespace

TEST_CASE("idle phases are summed up by name, and what nobody could use is not offered") {
  PhaseBook book;
  CHECK_FALSE(book.add({}, true));
  CHECK(book.add({totals("rollout", 10 * kNsPerSec, 0)}, false));
  auto rollout = totals("rollout", 4 * kNsPerSec, 3 * kNsPerSec);
  rollout.holdout_idle_ns = kNsPerSec;
  for (int64_t n = 1; n <= 100; ++n) rollout.overruns_ns.push_back(n * kNsPerUs);
  CHECK(book.add({rollout, totals("eval", kNsPerSec, 2 * kNsPerSec)}, true));
  const auto measures = book.measures();
  REQUIRE(measures.size() == 2);
  CHECK(measures[0].phase == "eval");
  CHECK(measures[0].harvested_ns == kNsPerSec);  // never more than there was
  CHECK(measures[0].give_back_p99_us == 0);
  CHECK(measures[1].phase == "rollout");
  CHECK(measures[1].count == 2);
  CHECK(measures[1].idle_ns == 15 * kNsPerSec);
  CHECK(measures[1].offered_ns == 4 * kNsPerSec);
  CHECK(measures[1].harvested_ns == 3 * kNsPerSec);
  CHECK(measures[1].give_back_p50_us == 50);
  CHECK(measures[1].give_back_p99_us == 99);
}

TEST_CASE("whatever is reported of idle phases is bounded") {
  PhaseBook book;
  CHECK_FALSE(book.add({totals("", 1, 1), totals(std::string(32, 'x'), 1, 1), totals("\xff", 1, 1)}, true));
  auto hostile = totals("liar", INT64_MAX, INT64_MAX);
  hostile.count = UINT64_MAX;
  hostile.holdout_idle_ns = INT64_MIN;
  hostile.overruns_ns.assign(10'000, INT64_MAX);
  for (int n = 0; n < 100'000; ++n) {
    hostile.overruns_ns.resize(n == 0 ? 10'000 : 0);
    CHECK(book.add({hostile}, true));
  }
  CHECK(book.measures().front().idle_ns > 0);
  CHECK(book.measures().front().harvested_ns == book.measures().front().idle_ns);
  for (int n = 0; n < 200; ++n) book.add({totals("name" + std::to_string(n), 1, 1)}, true);
  CHECK(book.measures().size() == PhaseBook::kMostNames);
  CHECK(book.add({totals("liar", 1, 1)}, true));  // known ones still count
}

TEST_CASE("a sample of overruns is bounded, and each has the same chance to be in it") {
  OverrunSample sample(100);
  CHECK(sample.percentile_us(0.5) == 0);
  for (int64_t n = 0; n < 10'000; ++n) sample.add(n * kNsPerUs);
  CHECK(sample.seen() == 10'000);
  CHECK(sample.sample().size() == 100);
  CHECK(sample.percentile_us(0.5) > 3000);
  CHECK(sample.percentile_us(0.5) < 7000);
  OverrunSample kept(100, sample.seen(), sample.sample());
  CHECK(kept.percentile_us(0.99) == sample.percentile_us(0.99));
}

TEST_CASE("a job's measures have its idle phases, until a new run begins") {
  Job job("gpt", 1, {});
  bus::BubbleTotals report;
  report.phases = {totals("rollout", kNsPerSec, 0)};
  report.phases[0].overruns_ns = {7 * kNsPerUs};
  job.see_side_tasks(1);
  (void)job.take_changed();
  job.add_bubbles(report);
  CHECK(job.take_changed());
  bool forget = false;
  const Job again(job.take_row(forget), {});  // after the manager's restart
  for (const Job* one : {static_cast<const Job*>(&job), &again}) {
    REQUIRE(one->measures().phases.size() == 1);
    CHECK(one->measures().phases[0].phase == "rollout");
    CHECK(one->measures().phases[0].offered_ns == kNsPerSec);
    CHECK(one->measures().phases[0].give_back_p99_us == 7);
  }
  bus::TrainingIteration iteration;
  for (const uint64_t number : {uint64_t{100}, uint64_t{0}}) {
    iteration.iteration = number;
    iteration.begin_ns = 1;
    iteration.end_ns = 1 + 5 * 3600 * kNsPerSec;  // a rollout may take hours
    job.add_iteration(iteration, kNsPerSec);
  }
  CHECK(job.measures().iterations == 1);
  CHECK(job.measures().phases.empty());
}
