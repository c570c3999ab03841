// The supervisor's judgement on synthetic looks.
#include "lease_watch.hpp"

#include <catch2/catch.hpp>

#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::runner;
using policy::Cause;
using policy::VerdictKind;

namespace {

constexpr int64_t kMs = kNsPerMs;

/// A page and a task as the supervisor sees them.
struct World {
  Look look;
  LeaseWatch watch;

  explicit World(bool by_cpu_clock = true) : watch(Limits{1000, 500}, by_cpu_clock, 1, 0) {
    look.readable = true;
    look.state = FREERIDE_STATE_PAUSED;
  }
  void open(int64_t length_ms, uint32_t kind = FREERIDE_LEASE_BUBBLE) {
    look.sequence += 2;
    look.lease.order = FREERIDE_ORDER_RUN;
    look.lease.kind = kind;
    ++look.lease.lease_id;
    look.lease.deadline_ns = static_cast<uint64_t>(look.now_ns + length_ms * kMs);
    look.lease.grace_ns = 100 * kMs;
    look.lease.hang_ns = 5000 * kMs;
  }
  void close() {
    look.sequence += 2;
    look.lease.kind = FREERIDE_LEASE_NONE;
    look.lease.grace_ns = 0;  // a worker need not repeat them
    look.lease.hang_ns = 0;
  }
  WatchDecision after(int64_t wall_ms, int64_t cpu_ms = 0) {
    look.now_ns += wall_ms * kMs;
    look.cpu_ns += cpu_ms * kMs;
    return watch.look(look);
  }
};

}  // namespace

TEST_CASE("lease watch: a task that never had a lease must not execute") {
  World world;
  const auto decision = world.after(1, 1000);  // whatever its creation took
  CHECK_FALSE(decision.kill);
  CHECK(decision.look_at_ns == world.look.now_ns + kNsPerSec);
  CHECK_FALSE(world.after(1000, 99).kill);
  CHECK(world.after(1000, 2).kill);
}

TEST_CASE("lease watch: a page that is unreadable from the first look on gives nobody a lease") {
  World world;
  world.open(60'000);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.look.transition = FREERIDE_IN_STEP;
  world.look.readable = false;
  const auto decision = world.after(1, 1);
  CHECK_FALSE(decision.kill);
  CHECK(decision.look_at_ns <= world.look.now_ns + 100 * kMs + 1);
  CHECK(world.after(101, 101).kill);
}

TEST_CASE("lease watch: a starved task is not hung, one that sleeps for as long is") {
  World world;
  world.open(10);
  world.after(1);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.look.transition = FREERIDE_IN_STEP;
  world.after(30, 5);
  world.look.starvation.wants_cpu = true;
  CHECK_FALSE(world.after(6000).kill);
  CHECK_FALSE(world.after(6000).kill);
  world.look.starvation = {12000 * kMs, false};  // it has had a processor since, and sleeps
  CHECK_FALSE(world.after(100, 1).kill);
  CHECK_FALSE(world.after(4800).kill);
  const auto decision = world.after(200);
  REQUIRE(decision.kill);
  CHECK(decision.kill->limit == "hang 5000 ms");
  CHECK(decision.kill->cause == Cause::kNoPause);
}

TEST_CASE("lease watch: creation has a limit") {
  World world;
  world.look.state = FREERIDE_STATE_SUBMITTED;
  world.look.transition = FREERIDE_IN_CREATE;
  CHECK(world.after(999).look_at_ns == 1000 * kMs + 1);
  const auto decision = world.after(2);
  REQUIRE(decision.kill);
  CHECK(decision.kill->transition == "CreateSideTask");
  CHECK(decision.kill->limit == "create 1000 ms");
}

TEST_CASE("lease watch: an open lease is looked at soon after it ends, then by the overrun rule") {
  World world;
  world.open(50);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.look.transition = FREERIDE_IN_STEP;
  CHECK(world.after(0).look_at_ns == 60 * kMs);  // the worker looks at 50
  CHECK(world.after(49, 49).look_at_ns == 60 * kMs);
  const auto at_end = world.after(1, 1);
  CHECK_FALSE(at_end.kill);
  CHECK(at_end.look_at_ns == 150 * kMs + 1);
  CHECK_FALSE(world.after(100, 100).kill);
  const auto beyond = world.after(1, 1);
  REQUIRE(beyond.kill);
  CHECK(beyond.kill->kind == VerdictKind::kOverran);
  CHECK(beyond.kill->cause == Cause::kLeaseEnd);
  CHECK(beyond.kill->transition == "RunNextStep");
}

TEST_CASE("lease watch: a revocation before the deadline is the end") {
  World world;
  world.open(60'000);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.after(10, 10);
  world.close();
  CHECK_FALSE(world.after(0).kill);
  CHECK(world.after(101, 101).kill);
}

TEST_CASE("lease watch: a starved task is not killed before the hang limit") {
  World world;
  world.open(50);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.look.transition = FREERIDE_IN_STEP;
  world.after(50, 50);
  CHECK_FALSE(world.after(4990, 5).kill);
  CHECK(world.after(20).kill);
}

TEST_CASE("lease watch: a pause is looked at again, ever more rarely") {
  World world;
  world.open(50);
  world.after(10, 10);
  world.close();
  CHECK(world.after(0).look_at_ns == world.look.now_ns + kNsPerSec);
  int looks = 0;
  for (int64_t day_ns = 86'400 * kNsPerSec; world.look.now_ns < day_ns; ++looks) {
    const auto decision = world.watch.look(world.look);
    REQUIRE_FALSE(decision.kill);
    world.look.now_ns = decision.look_at_ns;
  }
  CHECK(looks < 86'400 / 4 + 10);
  const auto decision = world.after(0, 101);
  REQUIRE(decision.kill);
  CHECK(decision.kill->transition == "PauseSideTask");
}

TEST_CASE("lease watch: an unreadable page ends the lease, a readable one with the same lease takes it up again") {
  World world;
  world.open(1000);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.after(1, 1);
  world.look.readable = false;
  ++world.look.sequence;
  CHECK_FALSE(world.after(50, 50).kill);
  world.look.readable = true;
  ++world.look.sequence;
  CHECK(world.after(60, 60).look_at_ns == 1010 * kMs);
  world.look.readable = false;
  world.after(1, 1);
  CHECK(world.after(101, 101).kill);
}

TEST_CASE("lease watch: a lease that was opened and closed before the first look still has an end") {
  for (const bool cleared : {false, true}) {
    World world;
    world.open(50);
    world.look.state = FREERIDE_STATE_RUNNING;
    if (cleared) world.close();
    world.after(60, 60);
    CHECK_FALSE(world.after(99, 99).kill);
    CHECK(world.after(2, 2).kill);
  }
}

TEST_CASE("lease watch: a lease that opened and closed unseen does not count as overrun of the one before") {
  World world;
  world.open(50);
  world.after(10, 10);
  world.close();
  world.after(1);
  world.open(500);
  world.close();
  CHECK_FALSE(world.after(400, 400).kill);
  // Only that change is forgiven, not what comes after.
  CHECK(world.after(101, 101).kill);
}

TEST_CASE("lease watch: stopping has its own limit, by order, by claim and by SIGTERM") {
  SECTION("by order") {
    World world;
    world.look.lease.order = FREERIDE_ORDER_STOP;
    CHECK(world.after(1).look_at_ns == 501 * kMs + 1);
    world.look.transition = FREERIDE_IN_STOP;
    CHECK_FALSE(world.after(500, 500).kill);
    const auto decision = world.after(1);
    REQUIRE(decision.kill);
    CHECK(decision.kill->transition == "StopSideTask");
    CHECK(decision.kill->limit == "stop 500 ms");
    CHECK(decision.kill->cause == Cause::kSlowTransition);
  }
  SECTION("by claim: no more time than an order would give") {
    World world;
    world.open(10);
    world.after(10, 10);
    world.look.transition = FREERIDE_IN_STOP;
    CHECK_FALSE(world.after(1, 1).kill);
    CHECK_FALSE(world.after(450, 50).kill);
    CHECK(world.after(51).kill);
  }
  SECTION("by claim: and far less execution") {
    World world;
    world.open(10);
    world.after(10, 10);
    world.look.transition = FREERIDE_IN_STOP;
    const auto first = world.after(90, 90);
    CHECK_FALSE(first.kill);
    CHECK(first.look_at_ns == world.look.now_ns + 10 * kMs + 1);
    const auto decision = world.after(11, 11);
    REQUIRE(decision.kill);
    CHECK(decision.kill->cause == Cause::kSlowTransition);
    CHECK(decision.kill->limit == "stop, of itself: 100 ms of execution");
  }
  SECTION("by SIGTERM") {
    World world;
    world.watch.stop_requested(0);
    CHECK(world.after(501).kill);
  }
}

TEST_CASE("lease watch: what StopSideTask has executed is no execution past the lease, until the process has ended") {
  World world;
  world.open(10);
  world.after(10, 10);
  world.look.lease.order = FREERIDE_ORDER_STOP;
  world.look.sequence += 2;
  world.look.transition = FREERIDE_IN_STOP;
  CHECK_FALSE(world.after(300, 300).kill);
  world.look.transition = FREERIDE_IN_NONE;
  world.look.state = FREERIDE_STATE_STOPPED;
  CHECK_FALSE(world.after(100, 100).kill);
  const auto decision = world.after(401, 401);  // the stop limit goes on
  REQUIRE(decision.kill);
  CHECK(decision.kill->cause == Cause::kSlowTransition);
}

TEST_CASE("lease watch: an order to stop ends the lease of a task that is still in its step") {
  World world;
  world.open(60'000);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.look.transition = FREERIDE_IN_STEP;
  world.after(1, 1);
  world.look.lease.order = FREERIDE_ORDER_STOP;
  world.look.sequence += 2;
  CHECK_FALSE(world.after(0).kill);
  const auto decision = world.after(101, 101);
  REQUIRE(decision.kill);
  CHECK(decision.kill->limit == "grace 100 ms");
}

TEST_CASE("lease watch: a task that paused in the middle of a step long ago may leave it when it is to stop") {
  const bool by_cpu_clock = GENERATE(false, true);
  World world(by_cpu_clock);
  world.open(50);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.look.transition = FREERIDE_IN_STEP;
  world.after(50, 50);
  world.close();
  world.look.state = FREERIDE_STATE_PAUSED;
  world.look.transition = FREERIDE_IN_NONE;
  world.look.last_paused_ns = world.look.now_ns;
  CHECK_FALSE(world.after(10).kill);
  world.look.now_ns += 60'000 * kMs;  // longer than grace and hang limit
  world.look.sequence += 2;
  world.look.lease.order = FREERIDE_ORDER_STOP;
  world.look.transition = FREERIDE_IN_STEP;
  CHECK_FALSE(world.after(1, 1).kill);
  CHECK_FALSE(world.after(98, 98).kill);
  const auto decision = world.after(3, 3);  // but no longer than after a lease's end
  REQUIRE(decision.kill);
  CHECK(decision.kill->limit == "grace 100 ms");
}

TEST_CASE("lease watch: a task that was to stop while it was initialised has been stopped") {
  World world(false);
  world.open(60'000, FREERIDE_LEASE_INIT);
  world.look.state = FREERIDE_STATE_CREATED;
  world.look.transition = FREERIDE_IN_INIT;
  world.after(1);
  world.close();
  SECTION("by order") {
    world.look.lease.order = FREERIDE_ORDER_STOP;
    CHECK_FALSE(world.after(1).kill);
    const auto decision = world.after(101);
    REQUIRE(decision.kill);
    CHECK(decision.kill->kind == VerdictKind::kStopped);
    CHECK(decision.kill->message == "by force: executed 101 ms past the end of lease 1");
  }
  SECTION("but not for its lease's end alone") {
    CHECK_FALSE(world.after(1).kill);
    const auto decision = world.after(101);
    REQUIRE(decision.kill);
    CHECK(decision.kill->kind == VerdictKind::kOverran);
  }
}

TEST_CASE("lease watch: a program that was told to end has been stopped, whatever it executed in its exit") {
  World world;
  world.open(50, FREERIDE_LEASE_SAVE);
  world.look.lease.order = FREERIDE_ORDER_END;
  world.look.transition = FREERIDE_IN_SAVE;
  CHECK_FALSE(world.after(1).kill);
  world.close();
  world.look.lease.grace_ns = 100 * kMs;
  world.look.lease.hang_ns = 5000 * kMs;
  CHECK_FALSE(world.after(1, 1).kill);
  const auto decision = world.after(200, 150);
  REQUIRE(decision.kill);
  CHECK(decision.kill->kind == VerdictKind::kStopped);
  CHECK(decision.kill->cause == Cause::kOrder);
  CHECK(decision.kill->message.find("by force") != std::string::npos);
}

TEST_CASE("lease watch: what the answer page claims never gives more time") {
  World world;
  world.look.state = FREERIDE_STATE_SUBMITTED;  // "not created yet", for ever
  world.open(10);
  CHECK_FALSE(world.after(5, 5).kill);
  CHECK_FALSE(world.after(5, 5).kill);  // the lease's end
  CHECK(world.after(101, 101).kill);
}

TEST_CASE("lease watch: a liar that says anything at all executes no longer than the rights allow") {
  // Every state and transition, and values that are none, one after the other, while it executes without a lease.
  const auto first = GENERATE(range(0u, 7u));
  const auto stride = GENERATE(1u, 3u, 5u, 8u);
  World world;
  world.look.state = FREERIDE_STATE_SUBMITTED;
  world.after(1, 1);
  world.look.state = FREERIDE_STATE_CREATED;
  world.open(10, FREERIDE_LEASE_INIT);
  world.after(1, 1);
  world.close();
  const int64_t from_ns = world.look.cpu_ns;
  WatchDecision decision;
  for (uint32_t word = first; !decision.kill; word += stride) {
    world.look.state = word % 7;
    world.look.transition = word % 12;
    world.look.last_paused_ns = word % 2 == 0 ? INT64_MAX : -1;
    decision = world.after(5, 5);
    REQUIRE(world.look.cpu_ns - from_ns <= (100 + 100 + 5) * kMs);
  }
  CHECK(decision.kill->kind == VerdictKind::kOverran);
}

TEST_CASE("lease watch: times beyond all bounds do not wrap") {
  World world;
  world.open(0);
  world.look.lease.deadline_ns = UINT64_MAX;
  world.look.lease.grace_ns = UINT64_MAX;
  world.look.lease.hang_ns = UINT64_MAX;
  world.look.state = FREERIDE_STATE_RUNNING;
  CHECK_FALSE(world.after(1, 1).kill);
  world.close();
  const auto decision = world.after(1, 1);
  CHECK_FALSE(decision.kill);
  CHECK(decision.look_at_ns > world.look.now_ns);
}

TEST_CASE("lease watch: on a GPU wall time counts") {
  World world(false);
  world.open(50);
  world.look.state = FREERIDE_STATE_RUNNING;
  world.after(50);
  CHECK_FALSE(world.after(100).kill);
  CHECK(world.after(1).kill);
}

TEST_CASE("lease watch: orders that have expired end a lease, whatever its page says, and then the process") {
  World world;
  world.after(1);
  const int64_t begin_ns = world.look.now_ns;
  world.look.state = FREERIDE_STATE_CREATED;
  world.look.orders_until_ns = begin_ns + 300 * kMs;
  world.look.orders_end_ns = begin_ns + 3000 * kMs;
  world.open(30'000, FREERIDE_LEASE_INIT);
  world.look.transition = FREERIDE_IN_INIT;
  const auto open = world.after(0);
  CHECK_FALSE(open.kill);
  CHECK(open.look_at_ns <= begin_ns + 310 * kMs);  // however long the lease is
  SECTION("renewed by then") {
    world.look.orders_until_ns += 1000 * kMs;
    CHECK_FALSE(world.after(400, 400).kill);
  }
  SECTION("what goes on is killed, and it is no fault of its own") {
    CHECK_FALSE(world.after(310, 310).kill);
    const auto decision = world.after(200, 200);
    REQUIRE(decision.kill);
    CHECK(decision.kill->kind == VerdictKind::kLost);
    CHECK(decision.kill->cause == Cause::kExpired);
  }
  SECTION("what has paused is kept for a while") {
    world.look.transition = FREERIDE_IN_NONE;
    world.look.state = FREERIDE_STATE_PAUSED;
    world.look.last_paused_ns = begin_ns + 300 * kMs;
    const auto decision = world.after(310);
    CHECK_FALSE(decision.kill);
    CHECK(decision.look_at_ns <= begin_ns + 3000 * kMs);
    const auto late = world.after(2700);
    REQUIRE(late.kill);
    CHECK(late.kill->cause == Cause::kExpired);
  }
}
