// The imperative interface, driven through hand-made pages: a workload executes within leases, and nowhere else.
#include <csignal>
#include <fstream>

#include "freeride/base/clock.hpp"
#include "freeride/base/process_stat.hpp"
#include "saved_state.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::runner;
using namespace freeride::runner::test;

namespace {

double metric(const Harness& harness, const std::string& name) {
  for (const auto& metric : harness.answer().metrics) {
    if (name == metric.name) return metric.value;
  }
  return 0;
}

char process_state(pid_t pid) {
  const auto stat = stat_of(pid);
  return stat ? stat->state : '?';
}

bool wait_for_steps(Harness& harness, double steps) {
  return harness.wait_until([&](const auto&) { return metric(harness, "steps") >= steps; });
}

bool wait_frozen(Harness& harness) {
  return harness.wait_until([&](const auto&) { return process_state(harness.task()) == 'T'; });
}

const Params kImperative{{"pieces", "1"}, {"piece_us", "300"}, {"interface", "imperative"}};

}  // namespace

TEST_CASE("imperative: a workload goes on in every lease, and its process is stopped between them") {
  const TempDir scratch;
  Harness::Options options;
  options.grace_ms = 50;
  options.hang_ms = 200;
  auto harness = start_paused("yielding", scratch, kImperative, options);
  for (int i = 0; i < 5; ++i) {
    const double steps = metric(*harness, "steps");
    harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
    REQUIRE(wait_for_steps(*harness, steps + 3));
    harness->revoke();
    REQUIRE(wait_frozen(*harness));
    REQUIRE(pages::load_acquire(harness->answer().state) == FREERIDE_STATE_PAUSED);
    const int64_t cpu_ns = harness->cpu_ns();
    const double done = metric(*harness, "steps");
    const timespec longer_than_the_limits{0, 300'000'000};
    if (i == 0) nanosleep(&longer_than_the_limits, nullptr);
    // A stop reaches the other threads a moment after the first.
    CHECK(harness->cpu_ns() - cpu_ns < 2 * kNsPerMs);
    CHECK(metric(*harness, "steps") == done);
  }
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  CHECK(outcome->threads_left == 0);
}

TEST_CASE("imperative: a lease that just runs out ends the same way") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, kImperative);
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 20, [&](const auto&) { return metric(*harness, "steps") >= 1; }));
  REQUIRE(wait_frozen(*harness));
  REQUIRE(harness->signal_supervisor(SIGTERM));  // to a process that is stopped
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("imperative: the workload's thread prepares itself under the init lease, and waits") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, kImperative);
  const double thread = metric(*harness, "prepared_in");
  CHECK(thread > 0);
  CHECK(thread != harness->task());
  REQUIRE(wait_frozen(*harness));
  CHECK(metric(*harness, "steps") == 0);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(wait_for_steps(*harness, 2));
  CHECK(metric(*harness, "works_in") == thread);
  harness->revoke();
  REQUIRE(harness->wait_paused());
  auto other = start_paused("yielding", scratch, {});
  CHECK(metric(*other, "prepared_in") == 0);  // the iterative interface has no such thread
}

TEST_CASE("imperative: a task that is stopped before its first lease ends in good order") {
  const TempDir scratch;
  auto harness = start_paused("yielding", scratch, kImperative);
  REQUIRE(wait_frozen(*harness));
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
  CHECK(outcome->threads_left == 0);
  CHECK(metric(*harness, "steps") == 0);
}

TEST_CASE("imperative: pieces are queued one ahead of the GPU while the gate stays open, and no more") {
  const TempDir scratch;
  const Params params{{"pieces", "50"}, {"piece_us", "1000"}, {"queued", "1"}, {"interface", "imperative"}};
  {
    auto harness = start_paused("yielding", scratch, params);
    for (int i = 0; i < 4; ++i) {
      const double steps = metric(*harness, "steps");
      harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
      REQUIRE(wait_for_steps(*harness, steps + 2));
      harness->revoke();  // wherever it is
      REQUIRE(wait_frozen(*harness));
    }
    harness->revoke(FREERIDE_ORDER_STOP);
    REQUIRE(harness->verdict());
    CHECK(harness->verdict()->verdict.kind == VerdictKind::kStopped);
  }
  int queued = 0, done = 0, most = 0;
  std::ifstream file(scratch.path() + "/pieces");
  std::string what;
  for (int64_t number = 0, begin_ns = 0, end_ns = 0; file >> what >> number >> begin_ns >> end_ns;) {
    if (what == "queued") ++queued;
    if (what == "piece") ++done;
    most = std::max(most, queued - done);
  }
  CHECK(most == 2);
  CHECK(done == queued);
}

TEST_CASE("imperative: a workload that never comes to its gate is stopped where it is") {
  const TempDir scratch;
  Params params = kImperative;
  params[1].second = "60000000";
  Harness::Options options;
  options.grace_ms = 100;
  auto harness = start_paused("yielding", scratch, params, options);
  harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
  REQUIRE(harness->wait_until([](const auto& answer) { return pages::load_acquire(answer.lease_id) == 2; }));
  harness->revoke();
  REQUIRE(wait_frozen(*harness));
  CHECK_FALSE(harness->verdict(1));
  harness->revoke(FREERIDE_ORDER_STOP);
  const auto outcome = harness->verdict();
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kStopped);
}

TEST_CASE("imperative: state is saved at the gate, a profile runs, other plugins say no") {
  const TempDir scratch;
  {
    auto harness = start_paused("yielding", scratch, kImperative);
    harness->open(FREERIDE_LEASE_BUBBLE, 60'000);
    REQUIRE(wait_for_steps(*harness, 3));
    harness->revoke();
    REQUIRE(wait_frozen(*harness));
    const uint64_t save_lease = harness->open(FREERIDE_LEASE_SAVE, 60'000, FREERIDE_ORDER_PAUSE);
    REQUIRE(
        harness->wait_until([&](const auto& answer) { return pages::load_acquire(answer.saved_lease) == save_lease; }));
    const auto saved = read_saved_state(harness->state_fd());
    REQUIRE(saved.ok());
    REQUIRE(saved->has_value());
    CHECK(std::stod((*saved)->bytes) == metric(*harness, "steps"));
  }
  Harness::Options options;
  options.purpose = "profile";
  auto profile = start("yielding", scratch, kImperative, options);
  REQUIRE(profile->wait_state(FREERIDE_STATE_CREATED));
  profile->open(FREERIDE_LEASE_PROFILE, 1'000);
  REQUIRE(profile->verdict());
  CHECK(profile->verdict()->verdict.kind == VerdictKind::kFinished);
  auto refused = start("counter", scratch, {{"interface", "imperative"}});
  REQUIRE(refused->verdict());
  CHECK(refused->verdict()->verdict.message.find("has no imperative interface") != std::string::npos);
}

TEST_CASE("imperative: after one slow pause it is tried again, a piece at a time, until it is known to fit") {
  const TempDir scratch;
  Params params = kImperative;
  params.emplace_back("first_pause_us", "200000");
  Harness::Options options;
  options.grace_ms = 5'000;
  auto harness = start_paused("yielding", scratch, params, options);
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 60, [&](const auto&) { return metric(*harness, "steps") >= 1; }));
  REQUIRE(wait_frozen(*harness));
  const double before = metric(*harness, "steps");
  // By that pause no lease of this length has room for it any more.
  const auto went_on = [&](const auto&) { return metric(*harness, "steps") > before; };
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 60, went_on));
  REQUIRE(wait_frozen(*harness));
  CHECK(pages::load_acquire(harness->answer().skipped) > 0);
  CHECK(metric(*harness, "steps") < before + 5);  // one piece, and one that the machine kept from its gate
  const double tried = metric(*harness, "steps");
  const auto works = [&](const auto&) { return metric(*harness, "steps") >= tried + 20; };
  REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 60, works));
}

TEST_CASE("imperative: a piece that is longer than any lease is done over several") {
  const TempDir scratch;
  Params params = kImperative;
  params[1].second = "100000";
  auto harness = start_paused("yielding", scratch, params);
  int leases = 0;
  const auto done = [&](const auto&) { return metric(*harness, "steps") >= 3; };
  while (leases < 200 && !done(harness->answer())) {
    const uint64_t before = steps(*harness);
    REQUIRE(open_until(*harness, FREERIDE_LEASE_BUBBLE, 20, [&](const auto&) { return steps(*harness) > before; }));
    REQUIRE(wait_frozen(*harness));
    ++leases;
  }
  INFO(leases);
  CHECK(done(harness->answer()));
}
