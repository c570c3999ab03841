#include "freeride/policy/lease.hpp"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "freeride/base/clock.hpp"

using freeride::FakeClock;
using freeride::kNsPerMs;
using freeride::kNsPerSec;
using namespace freeride::policy;

namespace {

// A device with ranks and tasks that remembers the open lease as the worker does.
struct Device {
  FakeClock clock{kNsPerSec};
  std::vector<RankView> ranks;
  std::vector<TaskView> tasks;
  size_t open_task = kNoTask;
  int64_t open_deadline_ns = 0;
  bool open_is_idle = false, grant_waits = false;
  uint64_t serial = 0;
  LeaseLimits limits;

  void bubble(size_t rank, int64_t low, int64_t mid, int64_t high) {
    if (ranks.size() <= rank) ranks.resize(rank + 1);
    RankView& r = ranks[rank];
    r.active = true;
    r.wait = 1;
    r.begin_ns = clock.now_ns();
    r.low_ns = low, r.mid_ns = mid, r.high_ns = high;
  }
  size_t task(int64_t predicted_ns = 0, int32_t priority = 0) {
    TaskView t;
    t.runnable = true;
    t.predicted_ns = predicted_ns;
    t.priority = priority;
    tasks.push_back(t);
    return tasks.size() - 1;
  }
  LeaseAction step() {
    const LeaseAction action =
        decide_lease({clock.now_ns(), ranks, tasks, open_task, open_deadline_ns, open_is_idle, limits, grant_waits});
    if (action.verb == LeaseVerb::kOpen) {
      open_task = action.task;
      open_deadline_ns = action.deadline_ns;
      open_is_idle = action.idle;
      tasks[action.task].last_served = ++serial;
      tasks[action.task].executing = true;
    } else if (action.verb == LeaseVerb::kClose) {
      open_task = kNoTask;
    }
    return action;
  }
  void decline() {
    tasks[open_task].executing = false;
    tasks[open_task].declined_ns = open_deadline_ns;
  }
};

}  // namespace

TEST_CASE("a lease goes from low to mid to high and is taken back at the end", "[lease]") {
  Device d;
  const size_t t = d.task(kNsPerMs);
  d.bubble(0, 10 * kNsPerMs, 12 * kNsPerMs, 20 * kNsPerMs);
  const int64_t begin = d.clock.now_ns();

  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.task == t);
  CHECK(action.deadline_ns == begin + 10 * kNsPerMs);
  CHECK(action.look_again_ns == action.deadline_ns);

  d.clock.set(begin + 5 * kNsPerMs);
  CHECK(d.step().verb == LeaseVerb::kNothing);
  d.clock.set(begin + 10 * kNsPerMs);
  action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.deadline_ns == begin + 12 * kNsPerMs);
  d.clock.set(begin + 12 * kNsPerMs);
  CHECK(d.step().deadline_ns == begin + 20 * kNsPerMs);
  d.clock.set(begin + 20 * kNsPerMs);
  action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.why == NoLease::kPastLengths);
  CHECK(action.look_again_ns == 0);
}

TEST_CASE("an early end closes the lease", "[lease]") {
  Device d;
  d.task();
  d.bubble(0, 10 * kNsPerMs, 12 * kNsPerMs, 20 * kNsPerMs);
  REQUIRE(d.step().verb == LeaseVerb::kOpen);
  d.clock.tick(kNsPerMs);
  d.ranks[0].wait = 0;
  const auto action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.why == NoLease::kTraining);
  CHECK(d.step().verb == LeaseVerb::kNothing);
}

TEST_CASE("no lease while any rank trains, and the earliest end counts", "[lease]") {
  Device d;
  d.task();
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  d.ranks.push_back({});
  d.ranks[1].active = true;
  CHECK(d.step().why == NoLease::kTraining);
  d.clock.tick(2 * kNsPerMs);
  d.bubble(1, 5 * kNsPerMs, 30 * kNsPerMs, 30 * kNsPerMs);
  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.deadline_ns == d.ranks[1].begin_ns + 5 * kNsPerMs);
  d.clock.set(action.deadline_ns);
  CHECK(d.step().deadline_ns == d.ranks[0].begin_ns + 10 * kNsPerMs);
  d.ranks[0].wait = 0;
  CHECK(d.step().verb == LeaseVerb::kClose);
}

TEST_CASE("unknown lengths, invalid marks, holdout and duty give none", "[lease]") {
  Device d;
  d.task();
  d.bubble(0, 0, 0, 0);
  CHECK(d.step().why == NoLease::kUnknown);
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  d.ranks[0].active = false;
  CHECK(d.step().why == NoLease::kInactive);
  d.ranks[0].active = true;
  HoldoutPlan plan;
  plan.job = "gpt";
  plan.block_iterations = 4;
  plan.share_pct = 100;
  d.ranks[0].plan = &plan;
  CHECK(d.step().why == NoLease::kHoldout);
  plan.share_pct = 0;
  plan.duty_pct = 0;
  CHECK(d.step().why == NoLease::kOffDuty);
  plan.duty_pct = 100;
  CHECK(d.step().verb == LeaseVerb::kOpen);
}

TEST_CASE("a page that lies gets no lease, or a short one", "[lease]") {
  Device d;
  d.task();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  d.bubble(0, kMost, kMost, kMost);
  const auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.deadline_ns == d.clock.now_ns() + d.limits.longest_ns);
  d.ranks[0].begin_ns = d.clock.now_ns() + kNsPerSec;
  CHECK(d.step().why == NoLease::kImplausible);
  d.ranks[0].begin_ns = -5;
  CHECK(d.step().why == NoLease::kImplausible);
  d.ranks[0].begin_ns = 0;
  CHECK(d.step().why == NoLease::kImplausible);
  d.bubble(0, -1, 5, 5);
  CHECK(d.step().why == NoLease::kImplausible);
  // Quantiles out of order count as the larger so far, and a begin long past as over.
  d.bubble(0, 10 * kNsPerMs, 1, 2);
  d.clock.tick(10 * kNsPerMs);
  CHECK(d.step().why == NoLease::kPastLengths);
}

TEST_CASE("tasks of one priority take turns; a higher priority goes first", "[lease]") {
  Device d;
  const size_t a = d.task(), b = d.task();
  std::vector<size_t> served;
  const auto run_bubble = [&] {
    d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
    const auto action = d.step();
    if (action.verb == LeaseVerb::kOpen) {
      served.push_back(action.task);
      d.tasks[action.task].executing = false;
    }
    d.clock.tick(5 * kNsPerMs);
    d.ranks[0].wait = 0;
    d.step();
    d.clock.tick(5 * kNsPerMs);
  };
  for (int i = 0; i < 4; ++i) run_bubble();
  CHECK(served == std::vector<size_t>{a, b, a, b});
  served.clear();
  const size_t c = d.task(0, 5);
  for (int i = 0; i < 2; ++i) run_bubble();
  CHECK(served == std::vector<size_t>{c, c});
}

TEST_CASE("a lease given back goes to the next task, whose step fits", "[lease]") {
  Device d;
  const size_t a = d.task(8 * kNsPerMs), b = d.task(kNsPerMs);
  d.bubble(0, 10 * kNsPerMs, 25 * kNsPerMs, 25 * kNsPerMs);
  REQUIRE(d.step().task == a);
  d.clock.tick(8 * kNsPerMs);
  CHECK(d.step().verb == LeaseVerb::kNothing);
  d.decline();
  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.task == b);
  d.clock.tick(kNsPerMs);
  d.decline();
  action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.why == NoLease::kNoTask);
  CHECK(action.look_again_ns == d.ranks[0].begin_ns + 10 * kNsPerMs);
  d.clock.tick(kNsPerMs);
  action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.deadline_ns == d.ranks[0].begin_ns + 25 * kNsPerMs);
}

TEST_CASE("whose step is thought too long goes last, but is not left out", "[lease]") {
  Device d;
  const size_t a = d.task(50 * kNsPerMs, 9);
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  CHECK(d.step().task == a);
  d.decline();
  const size_t b = d.task(kNsPerMs);
  d.clock.tick(kNsPerMs);
  CHECK(d.step().task == b);
}

TEST_CASE("best fit takes the longest step that fits, an unknown one last", "[lease]") {
  Device d;
  d.limits.order = LeaseOrder::kBestFit;
  d.task(0);
  d.task(kNsPerMs);
  const size_t c = d.task(8 * kNsPerMs);
  d.task(12 * kNsPerMs);
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  CHECK(d.step().task == c);
}

TEST_CASE("while one task has not paused no other gets a lease", "[lease]") {
  Device d;
  const size_t a = d.task(), b = d.task();
  d.tasks[b].executing = true;
  d.tasks[b].last_served = 7;
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  CHECK(d.step().task == b);
  d.open_task = kNoTask;
  d.tasks[b].runnable = false;
  CHECK(d.step().why == NoLease::kNoTask);
  d.tasks[b].executing = false;
  CHECK(d.step().task == a);
}

TEST_CASE("without a trainer only tasks that may, and a trainer ends it", "[lease]") {
  Device d;
  const size_t a = d.task();
  CHECK(d.step().why == NoLease::kNoTrainer);
  d.tasks[a].when_idle = true;
  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.idle);
  CHECK(action.deadline_ns == d.clock.now_ns() + d.limits.idle_slice_ns);
  d.clock.set(action.deadline_ns);
  CHECK(d.step().verb == LeaseVerb::kOpen);
  d.ranks.push_back({});
  CHECK(d.step().verb == LeaseVerb::kClose);
}

TEST_CASE("without a trainer leases stop for a task that waits for a grant, at the end of the one that is open",
          "[lease]") {
  Device d;
  d.tasks[d.task()].when_idle = true;
  const auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  d.grant_waits = true;
  CHECK(d.step().verb == LeaseVerb::kNothing);
  d.clock.set(action.deadline_ns);
  CHECK(d.step().why == NoLease::kGrant);
  CHECK(d.open_task == kNoTask);
  d.grant_waits = false;
  CHECK(d.step().verb == LeaseVerb::kOpen);
}

TEST_CASE("a task that may no longer run loses its lease", "[lease]") {
  Device d;
  const size_t a = d.task();
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  REQUIRE(d.step().verb == LeaseVerb::kOpen);
  d.tasks[a].runnable = false;
  const auto action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.why == NoLease::kNoTask);
  CHECK(action.look_again_ns == 0);
}

TEST_CASE("nothing under the shortest lease is opened", "[lease]") {
  Device d;
  d.task();
  d.bubble(0, d.limits.shortest_ns - 1, d.limits.shortest_ns - 1, d.limits.shortest_ns - 1);
  CHECK(d.step().why == NoLease::kPastLengths);
}
