// The state machine, driven through hand-made pages: order, leases, steps.
#include <algorithm>
#include <csignal>

#include "freeride/base/clock.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::runner;
using namespace freeride::runner::test;

TEST_CASE("runner: a task's life, in the paper's order") {
  const TempDir scratch;
  {
    auto harness = start("counter", scratch, {{"trace", "1"}, {"step_us", "200"}});
    const Outcome outcome = live(*harness);
    CHECK(outcome.verdict.kind == VerdictKind::kStopped);
    CHECK(outcome.verdict.transition.empty());
    CHECK(pages::load_acquire(harness->answer().state) == FREERIDE_STATE_STOPPED);
    CHECK(harness->log().find("info counter created") != std::string::npos);
    CHECK(std::string(harness->answer().metrics[0].name) == "count");
    CHECK(harness->answer().metrics[0].value == static_cast<double>(steps(*harness)));
    CHECK(harness->wait_gone() == 0);
  }
  const auto calls = read_trace(scratch);
  REQUIRE(calls.size() >= 6);
  std::string order;
  for (const auto& call : calls) {
    if (call.name != "step" || calls[0].name.empty() || order.find("step ") == std::string::npos)
      order += call.name + " ";
  }
  CHECK(order == "create init start step pause stop ");
}

TEST_CASE("runner: nothing but CreateSideTask happens without a lease, and no step before InitSideTask") {
  const TempDir scratch;
  auto harness = start("counter", scratch, {{"trace", "1"}});
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  // Refused, because not initialised. The next lease is only looked at after this one: no need to wait and see.
  harness->open(FREERIDE_LEASE_INIT, 60'000);
  REQUIRE(harness->wait_paused());
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000, FREERIDE_ORDER_PAUSE);  // a standing order to pause
  harness->open(FREERIDE_LEASE_PROFILE, 60'000);                       // not for a task that is to run
  harness->open(FREERIDE_LEASE_INIT, 60'000);                          // a second one
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  std::string order;
  for (const auto& call : read_trace(scratch)) order += call.name + " ";
  CHECK(order == "create init stop ");
}

TEST_CASE("runner: no step starts between a pause and the next lease") {
  const TempDir scratch;
  std::vector<std::pair<int64_t, int64_t>> windows;
  {
    auto harness = start_paused("counter", scratch, {{"trace", "1"}, {"step_us", "300"}});
    for (int i = 0; i < 30; ++i) {
      const uint32_t seen = pages::load_acquire(harness->answer().sequence);
      const int64_t opened_ns = SteadyClock::now();
      // A short lease may pass before the task looks at it: it then ends, for this test, where the next one begins.
      if (!windows.empty() && windows.back().second == 0) windows.back().second = opened_ns;
      harness->open(FREERIDE_LEASE_BUBBLE, i % 3 == 0 ? 3 : 60'000);
      if (i % 3 != 0) {
        REQUIRE(wait_steps(*harness, steps(*harness) + 2));
        harness->revoke();
      }
      // Paused *again*: the state alone could be the one from before.
      bool paused = false;
      REQUIRE(harness->wait_until([&](const auto& answer) {
        paused =
            pages::load_acquire(answer.sequence) != seen && pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED;
        return paused || (i % 3 == 0 && SteadyClock::now() > opened_ns + 50 * kNsPerMs);
      }));
      harness->revoke();
      windows.emplace_back(opened_ns, paused ? std::max<int64_t>(opened_ns, harness->answer().last_paused_ns) : 0);
    }
    harness->revoke(FREERIDE_ORDER_STOP);
    REQUIRE(harness->verdict());
  }
  int judged = 0;
  for (const auto& call : read_trace(scratch)) {
    if (call.name != "step") continue;
    ++judged;
    bool inside = false;
    for (const auto& [opened_ns, paused_ns] : windows) inside |= opened_ns <= call.begin_ns && call.end_ns <= paused_ns;
    CHECK(inside);
  }
  CHECK(judged >= 40);
}

TEST_CASE("runner: pauses at the deadline by itself, and starts no step that does not fit") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch, {{"step_us", "20000"}, {"sleep", "1"}});
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, 3));  // now it knows
  harness->revoke();
  REQUIRE(harness->wait_paused());
  CHECK(harness->answer().predicted_ns >= 20'000'000);

  // Five steps fit, not six.
  const uint64_t before = steps(*harness);
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 110, [&](const auto& answer) {
    return answer.lease_id == harness->lease().lease_id && pages::load_acquire(answer.state) == FREERIDE_STATE_PAUSED &&
           pages::load_acquire(answer.steps) > before;
  }));
  CHECK(steps(*harness) - before <= 5);
  CHECK(harness->answer().pause_seen_ns <= harness->answer().last_paused_ns);

  // A lease in which nothing fits: skipped, and the worker hears of it.
  const uint64_t skipped = harness->answer().skipped;
  const uint64_t done = steps(*harness);
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 10,
                     [skipped](const auto& answer) { return answer.skipped == skipped + 1; }));
  CHECK(steps(*harness) == done);
  CHECK(pages::load_acquire(harness->answer().state) == FREERIDE_STATE_PAUSED);
}

TEST_CASE("runner: a lease that follows without a gap goes on without a pause") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch, {{"step_us", "500"}, {"trace", "1"}});
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, 2));
  const uint64_t id = harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(harness->wait_until([id](const auto& answer) { return answer.lease_id == id; }));
  REQUIRE(wait_steps(*harness, steps(*harness) + 2));
  CHECK(harness->answer().first_step_ns >= harness->lease().opened_ns);
  harness->revoke(FREERIDE_ORDER_STOP);
  REQUIRE(harness->verdict());
  int pauses = 0;
  for (const auto& call : read_trace(scratch)) pauses += call.name == "pause" ? 1 : 0;
  CHECK(pauses == 1);
}

TEST_CASE("runner: what the answer page says adds up") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch, {{"step_us", "400"}});
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, 20));
  harness->revoke();
  REQUIRE(harness->wait_paused());
  const freeride_answer_page& answer = harness->answer();
  CHECK(answer.step_ns >= answer.steps * 400'000);
  CHECK(answer.lease_step_ns <= answer.step_ns);
  CHECK(answer.first_step_ns >= harness->lease().opened_ns);
  CHECK(answer.last_paused_ns >= answer.pause_seen_ns);
  CHECK(answer.last_paused_cpu_ns > 0);
  CHECK(answer.create_ns > 0);
  CHECK(answer.transition == FREERIDE_IN_NONE);
  CHECK(answer.lease_id == harness->lease().lease_id);
}

TEST_CASE("runner: a sequence that stays odd is no lease; a mended one is") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch, {{"step_us", "300"}});
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, 2));
  // The worker dies in the middle of a write.
  pages::store_release(harness->lease_page().sequence, harness->lease_page().sequence + 1);
  REQUIRE(harness->wait_paused());
  const uint64_t done = steps(*harness);
  pages::futex_wake(harness->lease_page().sequence);
  CHECK(steps(*harness) == done);
  // Another one mends the page.
  pages::store_release(harness->lease_page().sequence, harness->lease_page().sequence + 1);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  CHECK(wait_steps(*harness, done + 2));
}

TEST_CASE("runner: garbage on the lease page never runs a step") {
  const TempDir scratch;
  auto harness = start_paused("counter", scratch, {{"trace", "1"}});
  pages::Lease lie = harness->lease();
  lie.order = FREERIDE_ORDER_RUN;
  lie.lease_id = 77;
  lie.deadline_ns = UINT64_MAX;
  lie.kind = 4711;
  pages::write_lease(harness->lease_page(), lie);
  pages::futex_wake(harness->lease_page().sequence);
  lie.kind = FREERIDE_LEASE_BUBBLE;
  lie.order = 4711;
  pages::write_lease(harness->lease_page(), lie);
  pages::futex_wake(harness->lease_page().sequence);
  lie.order = FREERIDE_ORDER_RUN;
  lie.lease_id = 0;
  pages::write_lease(harness->lease_page(), lie);
  pages::futex_wake(harness->lease_page().sequence);
  harness->revoke(FREERIDE_ORDER_STOP);
  REQUIRE(harness->verdict());
  for (const auto& call : read_trace(scratch)) CHECK(call.name != "step");
}

TEST_CASE("runner: finishes by itself, and after --steps") {
  const TempDir scratch;
  {
    auto harness = start_paused("counter", scratch, {{"step_us", "100"}, {"finish", "5"}});
    harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
    const auto outcome = harness->verdict();
    REQUIRE(outcome);
    CHECK(outcome->verdict.kind == VerdictKind::kFinished);
    CHECK(outcome->verdict.message == "its work is done");
    CHECK(steps(*harness) == 5);
    CHECK(harness->answer().finished == 1);
  }
  Harness::Options options;
  options.steps = 7;
  auto harness = start_paused("counter", scratch, {{"step_us", "100"}}, options);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
  CHECK(outcome->verdict.message == "did its 7 steps");
  CHECK(steps(*harness) == 7);
}

namespace {
struct Record {
  freeride_profile_record header{};
  std::vector<freeride_profile_sample> samples;
  size_t count(uint32_t kind) const {
    return static_cast<size_t>(
        std::count_if(samples.begin(), samples.end(), [kind](const auto& sample) { return sample.kind == kind; }));
  }
};
Record read_record(const Harness& harness) {
  Record record;
  REQUIRE(pread(harness.state_fd(), &record.header, sizeof(record.header), 0) == sizeof(record.header));
  CHECK(record.header.magic == FREERIDE_PROFILE_MAGIC);
  record.samples.resize(record.header.samples);
  const size_t bytes = record.samples.size() * sizeof(record.samples[0]);
  REQUIRE(pread(harness.state_fd(), record.samples.data(), bytes, sizeof(record.header)) ==
          static_cast<ssize_t>(bytes));
  return record;
}
}  // namespace

TEST_CASE("runner: a profile takes one lease, some steps, and ends with a record of them") {
  const TempDir scratch;
  Harness::Options options;
  options.purpose = "profile";
  options.steps = 11;
  auto harness = start("counter", scratch, {{"step_us", "500"}, {"trace", "1"}}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_PROFILE, 60'000);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
  CHECK(outcome->verdict.message == "profiled");
  CHECK(steps(*harness) == 11);
  CHECK(outcome->step_p90_ns >= 500'000);
  CHECK(harness->answer().predicted_ns >= 500'000);
  const auto calls = read_trace(scratch);
  REQUIRE(calls.size() == 16);
  CHECK(calls[1].name == "init");
  CHECK(calls[14].name == "pause");
  CHECK(calls[15].name == "stop");
  const Record record = read_record(*harness);
  CHECK(record.count(FREERIDE_PROFILE_STEP) == 11);
  CHECK(record.count(FREERIDE_PROFILE_PIECE) == 0);
  CHECK(record.count(FREERIDE_PROFILE_START) == 1);
  CHECK(record.count(FREERIDE_PROFILE_PAUSE) == 1);
  for (const auto& sample : record.samples) {
    if (sample.kind == FREERIDE_PROFILE_STEP) CHECK(sample.duration_ns >= 500'000);
  }
}

TEST_CASE("runner: a profile beside a training is initialised like any task and makes its steps in bubbles") {
  const TempDir scratch;
  Harness::Options options;
  options.purpose = "profile";
  options.steps = 5;
  auto harness = start("counter", scratch, {{"step_us", "500"}, {"trace", "1"}}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_INIT, 60'000);
  REQUIRE(harness->wait_paused());
  CHECK(steps(*harness) == 0);
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 60'000,
                     [](const auto& answer) { return pages::load_acquire(answer.steps) >= 1; }));
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.message == "profiled");
  CHECK(steps(*harness) == 5);
  CHECK(read_record(*harness).count(FREERIDE_PROFILE_STEP) == 5);
}

TEST_CASE("runner: a profile whose lease is taken back goes on in bubbles") {
  const TempDir scratch;
  Harness::Options options;
  options.purpose = "profile";
  options.steps = 100'000;
  auto harness = start("counter", scratch, {{"step_us", "500"}}, options);
  REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
  harness->open(FREERIDE_LEASE_PROFILE, 60'000);
  REQUIRE(wait_steps(*harness, 1));
  harness->revoke(FREERIDE_ORDER_RUN);
  REQUIRE(harness->wait_paused());
  const uint64_t before = steps(*harness);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, before + 2));
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);  // with what there is: it has a record too
  CHECK(read_record(*harness).count(FREERIDE_PROFILE_STEP) >= before + 2);
}

TEST_CASE("runner: what a profile says of steps and pieces is the first prediction") {
  const TempDir scratch;
  Harness::Options options;
  options.predicted_pieces_ns = "7000000,3000000";
  auto harness = start_paused("yielding", scratch, {{"pieces", "2"}, {"piece_us", "100"}}, options);
  // Of the first piece, not of the whole step, with the margin that every prediction has.
  CHECK(harness->answer().predicted_ns >= 7'000'000);
  CHECK(harness->answer().predicted_ns < 8'000'000);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_steps(*harness, 40));
  CHECK(harness->answer().predicted_ns < 7'000'000);  // learning has gone on
}

TEST_CASE("runner: stopped from CREATED, PAUSED and RUNNING, by order and by SIGTERM") {
  for (const bool by_signal : {false, true}) {
    for (const uint32_t state : {FREERIDE_STATE_CREATED, FREERIDE_STATE_PAUSED, FREERIDE_STATE_RUNNING}) {
      INFO("by signal " << by_signal << ", from state " << state);
      const TempDir scratch;
      auto harness = start("counter", scratch, {{"step_us", "200"}, {"trace", "1"}});
      REQUIRE(harness->wait_state(FREERIDE_STATE_CREATED));
      if (state != FREERIDE_STATE_CREATED) {
        harness->open(FREERIDE_LEASE_INIT, 60'000);
        REQUIRE(harness->wait_paused());
      }
      if (state == FREERIDE_STATE_RUNNING) {
        harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
        REQUIRE(wait_steps(*harness, 1));
      }
      if (by_signal) {
        REQUIRE(harness->signal_supervisor(SIGTERM));
      } else {
        harness->revoke(FREERIDE_ORDER_STOP);
      }
      const auto outcome = harness->verdict();
      REQUIRE(outcome);
      CHECK(outcome->verdict.kind == VerdictKind::kStopped);
      const auto calls = read_trace(scratch);
      CHECK(calls.back().name == "stop");
      if (state == FREERIDE_STATE_RUNNING) CHECK(calls[calls.size() - 2].name == "pause");
    }
  }
}
