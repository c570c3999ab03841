#include "job.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <optional>

#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {
constexpr int64_t kMs = kNsPerMs;

/// Two ranks that train, base_ns an iteration, more by `slowdown` where the plan lets side tasks run.
struct Training {
  explicit Training(JobConfig config = {50, 1000 * kMs, {1.0, 1.0}}, uint64_t seed = 7) : job("gpt", seed, config) {}
  void iterate(int count, bool ready = true) {
    job.see_side_tasks(ready ? side_tasks : 0);
    for (int n = 0; n < count; ++n) {
      const policy::HoldoutPlan& in_force = at < plan.from_iteration ? previous : plan;
      const bool held = policy::is_held_out(in_force, at);
      // Deterministic jitter, so that intervals are not empty.
      const double jitter = static_cast<double>(static_cast<int>((at * 2654435761u) % 1000) - 500) / 500 * 1e6;
      const bool leases = ready && !held && policy::is_on_duty(in_force, at);
      const double scale = leases ? 1 + slowdown : 1;
      const auto duration = static_cast<int64_t>(base_ns * scale + jitter);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        bus::TrainingIteration iteration;
        iteration.job = "gpt";
        iteration.rank = iteration.stage = rank;
        iteration.iteration = at;
        iteration.begin_ns = now;
        iteration.end_ns = now + duration;
        iteration.bubble_ns = rank == 0 ? 20 * kMs : 40 * kMs;
        iteration.holdout = held && !(rank == 1 && disagrees);
        iteration.transitions = rank == 1 && in_transition;
        if (in_transition) iteration.end_ns += static_cast<int64_t>(transition_ns);
        job.add_iteration(iteration, now);
        bus::BubbleTotals totals;
        totals.job = "gpt";
        totals.stage = rank;
        if (!held) totals.bubble_ns = iteration.bubble_ns;
        if (leases) totals.harvested_ns = iteration.bubble_ns / 2;
        if (!held && ready) totals.overruns_ns = {static_cast<int64_t>(at % 100) * kNsPerUs};
        if (totals_come) job.add_bubbles(totals);
      }
      now += duration;
      ++at;
      if (at % 10 == 0 && job.replan(now)) {
        previous = plan;
        plan = job.plan();
      }
    }
  }
  Job job;
  policy::HoldoutPlan plan, previous;
  double slowdown = 0, base_ns = 100e6, transition_ns = 0;
  bool in_transition = false, disagrees = false;
  uint64_t side_tasks = 1;  // which
  bool totals_come = true;
  uint64_t at = 0;
  int64_t now = kNsPerSec;
};
}  // namespace

TEST_CASE("the plan follows from the measured iteration, and begins where no rank has been yet") {
  Training training;
  CHECK_FALSE(training.job.replan(training.now));
  training.iterate(10);
  CHECK(training.plan.block_iterations == 10);
  CHECK(training.plan.share_pct == 50);
  CHECK(training.plan.from_iteration >= 9 + 30);
  const auto plan = training.plan;
  training.iterate(200);
  CHECK(training.plan.from_iteration == plan.from_iteration);  // nothing has changed, so nothing is sent again
}

TEST_CASE("I, bubble and harvested share are measured against the holdout") {
  Training training({50, 1000 * kMs, {100.0, 1.0}});
  training.slowdown = 0.05;
  training.iterate(1000);
  const auto measures = training.job.measures();
  REQUIRE(measures.measured);
  CHECK(measures.time_increase_pct == Approx(5).margin(0.2));
  CHECK(measures.time_increase_ci95_low_pct < 5.2);
  CHECK(measures.time_increase_ci95_high_pct > 4.8);
  CHECK(measures.iteration_ms == Approx(100).margin(1));
  CHECK(measures.iterations == 1000);
  CHECK(measures.holdout_iterations == Approx(480).margin(30));
  CHECK(measures.stage_bubble_share_pct.at("0") == Approx(19.5).margin(1));
  CHECK(measures.stage_bubble_share_pct.at("1") == Approx(39).margin(2));
  CHECK(measures.bubble_share_pct == Approx(29.3).margin(1.5));
  CHECK(measures.harvested_share_pct == Approx(50));
  CHECK(measures.overrun_p50_us == Approx(50).margin(15));
  CHECK(measures.overrun_p99_us >= 90);
}

TEST_CASE("while I is not measured, it is told how long that takes") {
  Training training({10, 1000 * kMs, {1.0, 1.0}});
  CHECK(training.job.measures().measured_in_ms == 0);  // there is no plan yet
  training.iterate(30);
  const auto first = training.job.measures();
  REQUIRE_FALSE(first.measured);
  // Three blocks of a second that are held out, and one in ten is.
  CHECK(first.measured_in_ms == Approx(30'000).margin(3'000));
  training.iterate(150);
  CHECK(training.job.measures().measured_in_ms < first.measured_in_ms);
  training.iterate(1000);
  REQUIRE(training.job.measures().measured);
  CHECK(training.job.measures().measured_in_ms == 0);
}

TEST_CASE("iterations in which no side task could run are no evidence") {
  Training training;
  training.slowdown = 0.05;
  training.iterate(1000, false);
  CHECK_FALSE(training.job.measures().measured);
  CHECK(training.job.measures().harvested_share_pct == 0);
}

TEST_CASE("what a worker and the plan disagree about is no evidence") {
  Training training;
  training.iterate(30);
  training.plan.block_iterations = 0;  // from here on nothing is held out, whatever the plan says
  training.iterate(200);
  const auto measures = training.job.measures();
  CHECK_FALSE(measures.measured);
}

TEST_CASE("I above the budget lowers the duty until I is within it, and gives back what turns out to be harmless") {
  Training training({50, 1000 * kMs, {1.0, 1.0}});
  training.slowdown = 0.08;
  training.iterate(1500);  // what it cost at first has been paid back
  CHECK(training.plan.duty_pct * 0.08 <= 1.0);
  CHECK(training.plan.duty_pct * 0.08 >= 0.7);
  training.slowdown = 0;
  training.iterate(4000);
  CHECK(training.plan.duty_pct == 100);
}

TEST_CASE("a tenth of the iterations is held out, however often the duty is changed") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Training training({10, 1000 * kMs, {1.0, 1.0}}, seed);
    for (int turn = 0; turn < 30; ++turn) {  // so that the duty falls and rises all the time
      training.slowdown = turn % 2 == 0 ? 0.1 : 0;
      training.iterate(300);
    }
    const auto measures = training.job.measures();
    CAPTURE(seed);
    CHECK(measures.holdout_iterations > measures.iterations * 6 / 100);
    CHECK(measures.holdout_iterations < measures.iterations * 14 / 100);
  }
}

TEST_CASE("where side tasks come and go in every held-out iteration, so that none is a baseline, duty falls") {
  Training training({20, 1000 * kMs, {1.0, 1.0}});
  training.iterate(2000);
  REQUIRE(training.plan.duty_pct == 100);
  training.in_transition = true;
  training.slowdown = 0.5;
  training.iterate(1000);
  CHECK(training.plan.duty_pct == policy::kMinDutyPct);
  training.in_transition = false;
  training.slowdown = 0;
  training.iterate(6000);
  CHECK(training.plan.duty_pct == 100);
}

TEST_CASE("a budget is of what training has lost: what was too much at first is paid back") {
  Training training({50, 1000 * kMs, {1.0, 1.0}});
  training.slowdown = 0.08;
  training.iterate(1200);
  const auto measures = training.job.measures();
  REQUIRE(measures.measured);
  CHECK(measures.expected_cost_pct == Approx(8).margin(0.5));
  CHECK(measures.budget_pct == 1);
  CHECK(measures.time_increase_pct <= 1.05);
  CHECK(measures.time_increase_pct >= 0.5);
}

TEST_CASE("before anything is measured no more is given than the budget allows the usual side task") {
  const auto first = [](double baseline_pct, double budget_pct) {
    Training training({baseline_pct, 1000 * kMs, {budget_pct, 1.0}});
    training.iterate(20);
    return training.job.plan().duty_pct;
  };
  CHECK(first(50, 0.5) == Approx(45));
  CHECK(first(50, 1.0) == 100);
  CHECK(first(0, 0.5) == 100);  // who wants nothing measured gets no budget either
}

TEST_CASE("other side tasks are judged by what they cost themselves") {
  Training training({50, 1000 * kMs, {1.0, 1.0}});
  training.iterate(2000);
  CHECK(training.plan.duty_pct == 100);
  training.slowdown = 0.08;
  training.side_tasks = 2;
  training.iterate(500);
  CHECK(training.plan.duty_pct * 0.08 <= 1.0);
  training.slowdown = 0;
  training.side_tasks = 3;
  training.iterate(1200);
  CHECK(training.plan.duty_pct == 100);
}

TEST_CASE("a start that slows training does not give its side task a higher duty") {
  Training training({10, 1000 * kMs, {1.0, 1.0}});
  training.slowdown = 0.05;
  training.iterate(3000);
  const double duty = training.plan.duty_pct;
  REQUIRE(duty < 30);
  training.side_tasks = 2;
  training.transition_ns = 50e6;
  // Its start is beside iterations that have no leases, which makes those with leases look harmless.
  for (int n = 0; n < 100; ++n) {
    training.in_transition =
        !policy::is_held_out(training.plan, training.at) && !policy::is_on_duty(training.plan, training.at);
    training.iterate(1);
    CHECK(training.job.plan().duty_pct <= duty);
  }
}

TEST_CASE("side tasks that change all the time are not throttled for ever") {
  Training training({10, 1000 * kMs, {1.0, 1.0}});
  training.iterate(3000);
  REQUIRE(training.plan.duty_pct == 100);
  for (int turn = 0; turn < 60; ++turn) {
    training.side_tasks = 2 + static_cast<uint64_t>(turn % 2);
    training.slowdown = turn == 3 ? 0.3 : 0;  // one of them is costly
    training.iterate(60);                     // too few for three baseline blocks
  }
  CHECK(training.plan.duty_pct > 50);
}

TEST_CASE("without a budget side tasks go on as long as they are worth what they cost") {
  Training training({50, 1000 * kMs, {std::nullopt, 1.0}});
  training.slowdown = 0.08;  // they get 10 and 20 ms of 108
  training.iterate(600);
  CHECK(training.plan.duty_pct == 100);
  Training cheap({50, 1000 * kMs, {std::nullopt, 0.25}});
  cheap.slowdown = 0.08;
  cheap.iterate(600);
  CHECK(cheap.plan.duty_pct == policy::kMinDutyPct);
}

TEST_CASE("the block length follows an iteration that has become much longer") {
  Training training({50, 1000 * kMs, {1000.0, 1.0}});
  training.iterate(300);
  training.base_ns = 250e6;
  training.iterate(600);
  CHECK(training.plan.block_iterations < 8);
}

TEST_CASE("a new run of the job begins anew") {
  Training training;
  training.iterate(500);
  CHECK(training.job.measures().iterations == 500);
  training.at = 0;
  training.iterate(5);
  CHECK(training.job.measures().iterations == 5);
  CHECK_FALSE(training.job.measures().measured);
  training.iterate(300);
  CHECK(training.plan.from_iteration < 300);
  bool forget = false;
  training.job.take_row(forget);
  CHECK(forget);
}

TEST_CASE("repeated iterations count once") {
  Training training;
  training.iterate(20);
  training.at -= 2;
  training.iterate(1);
  CHECK(training.job.measures().iterations == 20);
}

TEST_CASE("plan, totals and blocks go on from what was kept") {
  Training training;
  training.slowdown = 0.02;
  training.iterate(500);
  bool forget = false;
  auto row = training.job.take_row(forget);
  const auto before = training.job.measures();
  Job restored(row, {50, 1000 * kMs, {1.0}});
  const auto after = restored.measures();
  CHECK(after.iterations == before.iterations);
  CHECK(after.time_increase_pct == Approx(before.time_increase_pct));
  CHECK(after.harvested_share_pct == Approx(before.harvested_share_pct));
  CHECK(after.overrun_p99_us == before.overrun_p99_us);
  CHECK(restored.plan().from_iteration == training.job.plan().from_iteration);
  REQUIRE(restored.wire_plans().size() == training.job.wire_plans().size());
  CHECK(training.job.take_row(forget).blocks.empty());  // each block is saved once
}

TEST_CASE("a new run of a job that was throttled is not throttled for the last one's cost") {
  Training training;
  training.slowdown = 0.9;
  training.iterate(2000);
  REQUIRE(training.plan.duty_pct < 10);
  training.slowdown = 0;
  training.at = 0;
  training.iterate(20);
  CHECK(training.plan.duty_pct == 100);
  training.iterate(1000);
  CHECK(training.plan.duty_pct == 100);
}

TEST_CASE("what holds cost is told of the rank whose held iterations are longest") {
  Training training;
  bus::TrainingState rank;
  rank.job = "gpt";
  rank.stages = 3;
  const auto see = [&](uint32_t number, const bus::HoldCost& held, const bus::HoldCost& with_leases) {
    rank.rank = rank.stage = number;
    rank.held = held;
    rank.held_with_leases = with_leases;
    training.job.see_rank(rank, training.now);
  };
  see(0, {}, {});
  CHECK(training.job.measures().held.periods == 0);
  see(1, {9, -0.3, -0.5, -0.1}, {9, 0.1, 0, 0.2});
  see(2, {8, -0.2, -0.4, 0}, {});
  CHECK(training.job.measures().held.periods == 8);
  CHECK(training.job.measures().held.increase_pct == -0.2);
  CHECK(training.job.measures().held_with_leases.periods == 0);
  see(2, {8, std::nan(""), 0, HUGE_VAL}, {});
  CHECK(training.job.measures().held.periods == 9);
  CHECK(training.job.measures().held_with_leases.ci95_high_pct == 0.2);
}

TEST_CASE("what a training asks for lowers its job's budget, and never raises it") {
  bus::TrainingState rank;
  rank.job = "gpt";
  rank.stages = 2;
  const auto ask = [&rank](Training& training, uint32_t number, double pct) {
    rank.rank = rank.stage = number;
    rank.budget_pct = pct;
    training.job.see_rank(rank, training.now);
  };
  SECTION("the least of its ranks counts, from the first iteration on") {
    Training training;  // of 1 %
    ask(training, 0, 0.5);
    ask(training, 1, 0.2);
    CHECK(training.job.measures().budget_pct == 0.2);
    CHECK(training.job.measures().asked_budget_pct == 0.2);
    training.iterate(20);
    CHECK(training.plan.duty_pct == Approx(18));  // of what is usual, nine tenths of the budget
    ask(training, 1, -1);
    CHECK(training.job.measures().budget_pct == 0.5);
  }
  SECTION("more than the manager's, or no number, is the manager's") {
    Training training;
    for (const double pct : {5.0, 1e300, -0.1, std::nan(""), HUGE_VAL}) {
      ask(training, 0, pct);
      CHECK(training.job.measures().budget_pct == 1);
    }
  }
  SECTION("also where the manager's is as much as pays") {
    Training training({50, 1000 * kMs, {std::nullopt, 1.0}});
    CHECK(training.job.measures().budget_pct == -1);
    ask(training, 0, 0.3);
    CHECK(training.job.measures().budget_pct == 0.3);
  }
  SECTION("the next run's ranks say it anew") {
    Training training;
    ask(training, 0, 0.2);
    training.iterate(100);
    training.at = 0;
    training.iterate(1);
    CHECK(training.job.measures().asked_budget_pct == -1);
    ask(training, 0, 0.3);
    CHECK(training.job.measures().budget_pct == 0.3);
  }
}

TEST_CASE("a restarted manager keeps the duty, though it has not seen yet what side tasks get") {
  Training training;
  training.slowdown = 0.02;
  training.iterate(800);
  const double duty = training.plan.duty_pct;
  REQUIRE(duty > 30);
  bool forget = false;
  training.job = Job(training.job.take_row(forget), {50, 1000 * kMs, {1.0, 1.0}});
  training.totals_come = false;  // they are up to a second old
  training.iterate(20);
  CHECK(training.job.plan().duty_pct == Approx(duty).margin(10));
}

TEST_CASE("what creating and stopping side tasks costs is in I, whichever iterations it falls into") {
  Training training({50, 1000 * kMs, {100.0, 1.0}});
  training.transition_ns = 100e6;  // twice as long
  for (int n = 0; n < 2000; ++n) {
    training.in_transition = training.at % 20 == 7;
    training.iterate(1);
  }
  const auto measures = training.job.measures();
  REQUIRE(measures.measured);
  CHECK(measures.time_increase_pct == Approx(5).margin(1));
}

TEST_CASE("iterations that ranks disagree about are evidence for nothing") {
  Training training({50, 1000 * kMs, {100.0, 1.0}});
  training.disagrees = true;
  training.iterate(1000);
  CHECK_FALSE(training.job.measures().measured);
  CHECK(training.job.measures().iterations > 900);
}

TEST_CASE("a rank that says nothing holds nothing up") {
  Training training({50, 1000 * kMs, {100.0, 1.0}});
  bus::TrainingState third;
  third.rank = 2;
  for (int n = 0; n < 1000; ++n) {
    training.job.see_rank(third, training.now);
    training.iterate(1);
  }
  CHECK(training.job.measures().measured);
}

TEST_CASE("a job's memory stays bounded whatever is reported") {
  Job job("gpt", 1, {});
  bus::TrainingIteration iteration;
  iteration.begin_ns = 1;
  iteration.end_ns = 2;
  for (uint32_t n = 0; n < 20'000; ++n) {
    iteration.rank = iteration.stage = n;
    iteration.iteration = n;
    job.add_iteration(iteration, 1);
    bus::TrainingState rank;
    rank.rank = n;
    rank.stages = UINT32_MAX;
    job.see_rank(rank, 1);
  }
  bus::BubbleTotals totals;
  totals.overruns_ns.assign(50'000, INT64_MAX);
  job.add_bubbles(totals);
  CHECK(job.measures().stage_bubble_share_pct.size() <= Job::kMaxStages);
  CHECK(job.measures().stages <= Job::kMaxStages);
  bool forget = false;
  CHECK(job.take_row(forget).overruns_ns.size() <= Job::kOverrunSample);
}
