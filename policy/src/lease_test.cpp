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
  bool open_is_idle = false;
  uint64_t serial = 0;
  LeaseLimits limits;
  bool other_process = false;
  int64_t settled_ns = 0;

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
    LeaseSnapshot snapshot{clock.now_ns(), ranks, tasks, open_task, open_deadline_ns, open_is_idle, limits};
    snapshot.other_process = other_process;
    snapshot.settled_ns = settled_ns;
    const LeaseAction action = decide_lease(snapshot);
    if (is_own(action.kind)) {
      TaskView& task = tasks[action.task];
      const bool opened = action.verb == LeaseVerb::kOpen;
      task.holds = opened ? action.kind : LeaseKind::kNone;
      task.holds_until_ns = action.deadline_ns;
      if (opened) task.wants = LeaseKind::kNone;
    } else if (action.verb == LeaseVerb::kOpen) {
      open_task = action.task;
      open_deadline_ns = action.deadline_ns;
      open_is_idle = action.kind == LeaseKind::kIdle;
      tasks[action.task].last_served = ++serial;
      tasks[action.task].executing = true;
    } else if (action.verb == LeaseVerb::kClose) {
      open_task = kNoTask;
    }
    return action;
  }
  // A task that is created and waits, or is paused and is to save.
  size_t wants(LeaseKind kind) {
    TaskView t;
    t.wants = kind;
    tasks.push_back(t);
    return tasks.size() - 1;
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
  CHECK(action.why == Why::kPastLengths);
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
  CHECK(action.why == Why::kTraining);
  CHECK(d.step().verb == LeaseVerb::kNothing);
}

TEST_CASE("no lease while any rank trains, and the earliest end counts", "[lease]") {
  Device d;
  d.task();
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  d.ranks.push_back({});
  d.ranks[1].active = true;
  CHECK(d.step().why == Why::kTraining);
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
  CHECK(d.step().why == Why::kUnknown);
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  d.ranks[0].active = false;
  CHECK(d.step().why == Why::kInactive);
  d.ranks[0].active = true;
  HoldoutPlan plan;
  plan.job = "gpt";
  plan.block_iterations = 4;
  plan.share_pct = 100;
  d.ranks[0].plan = &plan;
  CHECK(d.step().why == Why::kHoldout);
  plan.share_pct = 0;
  plan.duty_pct = 0;
  CHECK(d.step().why == Why::kOffDuty);
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
  CHECK(d.step().why == Why::kImplausible);
  d.ranks[0].begin_ns = -5;
  CHECK(d.step().why == Why::kImplausible);
  d.ranks[0].begin_ns = 0;
  CHECK(d.step().why == Why::kImplausible);
  d.bubble(0, -1, 5, 5);
  CHECK(d.step().why == Why::kImplausible);
  // Quantiles out of order count as the larger so far, and a begin long past as over.
  d.bubble(0, 10 * kNsPerMs, 1, 2);
  d.clock.tick(10 * kNsPerMs);
  CHECK(d.step().why == Why::kPastLengths);
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
  CHECK(action.why == Why::kNoTask);
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
  CHECK(d.step().why == Why::kNoTask);
  d.tasks[b].executing = false;
  CHECK(d.step().task == a);
}

TEST_CASE("without a trainer only tasks that may, and a trainer ends it", "[lease]") {
  Device d;
  const size_t a = d.task();
  CHECK(d.step().why == Why::kDeviceIdle);
  d.tasks[a].when_idle = true;
  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.kind == LeaseKind::kIdle);
  CHECK(action.deadline_ns == d.clock.now_ns() + d.limits.idle_slice_ns);
  d.clock.set(action.deadline_ns);
  CHECK(d.step().verb == LeaseVerb::kOpen);
  d.ranks.push_back({});
  CHECK(d.step().verb == LeaseVerb::kClose);
}

TEST_CASE("no idle lease while a training may be there unseen", "[lease]") {
  Device d;
  const size_t a = d.task();
  d.tasks[a].when_idle = true;
  SECTION("until the worker has settled") {
    d.settled_ns = d.clock.now_ns() + 10 * kNsPerSec;
    const auto action = d.step();
    CHECK(action.verb == LeaseVerb::kNothing);
    CHECK(action.why == Why::kSettling);
    CHECK(action.look_again_ns == d.settled_ns);
    d.clock.set(d.settled_ns);
    CHECK(d.step().kind == LeaseKind::kIdle);
  }
  SECTION("while another process is on the GPU: an open lease is taken back") {
    REQUIRE(d.step().kind == LeaseKind::kIdle);
    d.other_process = true;
    const auto action = d.step();
    CHECK(action.verb == LeaseVerb::kClose);
    CHECK(action.why == Why::kOtherProcess);
    d.other_process = false;
    CHECK(d.step().kind == LeaseKind::kIdle);
  }
  SECTION("bubbles are used all the same") {
    d.other_process = true;
    d.settled_ns = d.clock.now_ns() + 10 * kNsPerSec;
    d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
    CHECK(d.step().kind == LeaseKind::kBubble);
  }
}

TEST_CASE("a profile makes no step without a bubble while a training may be there unseen", "[lease]") {
  Device d;
  const size_t a = d.wants(LeaseKind::kProfile);
  SECTION("another process comes meanwhile: its steps are not made beside it") {
    REQUIRE(d.step().kind == LeaseKind::kProfile);
    d.tasks[a].init_done = true;
    CHECK(d.step().verb == LeaseVerb::kNothing);
    d.other_process = true;
    const auto action = d.step();
    CHECK(action.verb == LeaseVerb::kClose);
    CHECK(action.training_came);
  }
  SECTION("another process is there") {
    d.other_process = true;
    CHECK(d.step().kind == LeaseKind::kInit);
  }
  SECTION("the worker has just started: the profile waits, and holds nobody else up") {
    d.settled_ns = d.clock.now_ns() + 10 * kNsPerSec;
    const auto waits = d.step();
    CHECK(waits.verb == LeaseVerb::kNothing);
    CHECK(waits.look_again_ns == d.settled_ns);
    const size_t b = d.wants(LeaseKind::kInit);
    CHECK(d.step().task == b);
    d.tasks[b].done = true;
    CHECK(d.step().verb == LeaseVerb::kClose);
    d.clock.set(d.settled_ns);
    const auto profile = d.step();
    CHECK(profile.task == a);
    CHECK(profile.kind == LeaseKind::kProfile);
  }
  SECTION("a training attaches meanwhile") {
    d.settled_ns = d.clock.now_ns() + 10 * kNsPerSec;
    d.ranks.push_back({});
    CHECK(d.step().kind == LeaseKind::kInit);
  }
}

TEST_CASE("without a trainer leases stop for a task that waits for an init lease, at the end of the open one",
          "[lease]") {
  Device d;
  const size_t a = d.task();
  d.tasks[a].when_idle = true;
  const auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  const size_t b = d.wants(LeaseKind::kInit);
  CHECK(d.step().verb == LeaseVerb::kNothing);
  d.clock.set(action.deadline_ns);
  const auto closed = d.step();
  CHECK(closed.why == Why::kOtherLease);
  CHECK(d.open_task == kNoTask);
  CHECK(d.step().verb == LeaseVerb::kNothing);  // it has not paused
  d.tasks[a].executing = false;
  const auto init = d.step();
  CHECK(init.kind == LeaseKind::kInit);
  CHECK(init.task == b);
  CHECK(init.look_again_ns == d.clock.now_ns());
  CHECK(d.step().kind == LeaseKind::kIdle);  // beside it
}

TEST_CASE("init, profile and save leases: one at a time, in a training's time too", "[lease]") {
  Device d;
  d.ranks.push_back({});
  d.ranks[0].active = true;
  const size_t a = d.wants(LeaseKind::kInit), b = d.wants(LeaseKind::kSave);
  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.kind == LeaseKind::kInit);
  CHECK(action.task == a);
  CHECK(action.deadline_ns == d.clock.now_ns() + d.limits.init_ns);
  CHECK(action.why == Why::kTraining);  // of the leases for steps
  action = d.step();
  CHECK(action.verb == LeaseVerb::kNothing);
  CHECK(action.look_again_ns == d.clock.now_ns() + d.limits.init_ns);
  d.tasks[a].done = true;
  action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.task == a);
  action = d.step();
  CHECK(action.kind == LeaseKind::kSave);
  CHECK(action.task == b);
  d.clock.set(action.deadline_ns);
  CHECK(d.step().verb == LeaseVerb::kClose);  // its time is up, done or not
}

TEST_CASE("an init lease begins when nobody has or uses a lease for steps, and bubbles go on beside it", "[lease]") {
  Device d;
  const size_t a = d.task();
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  REQUIRE(d.step().verb == LeaseVerb::kOpen);
  d.wants(LeaseKind::kInit);
  CHECK(d.step().verb == LeaseVerb::kNothing);
  d.ranks[0].wait = 0;
  CHECK(d.step().verb == LeaseVerb::kClose);
  CHECK(d.step().verb == LeaseVerb::kNothing);  // it has not paused
  d.tasks[a].executing = false;
  CHECK(d.step().kind == LeaseKind::kInit);
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  const auto action = d.step();
  CHECK(action.kind == LeaseKind::kBubble);
  CHECK(action.task == a);
}

TEST_CASE("a bubble's lease that is taken back from a paused task makes room for an init lease at once", "[lease]") {
  Device d;
  const size_t a = d.task();
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  REQUIRE(d.step().verb == LeaseVerb::kOpen);
  d.wants(LeaseKind::kInit);
  d.tasks[a].executing = false;
  d.ranks[0].wait = 0;
  const auto action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.look_again_ns == d.clock.now_ns());
  CHECK(d.step().kind == LeaseKind::kInit);
}

TEST_CASE("a profile lease is for a device without a training; one that comes takes it back after InitSideTask",
          "[lease]") {
  Device d;
  const size_t a = d.wants(LeaseKind::kProfile);
  SECTION("beside a training it is an init lease") {
    d.ranks.push_back({});
    CHECK(d.step().kind == LeaseKind::kInit);
  }
  SECTION("without one it is for all of it") {
    auto action = d.step();
    REQUIRE(action.kind == LeaseKind::kProfile);
    CHECK(action.deadline_ns == d.clock.now_ns() + d.limits.profile_ns);
    d.tasks[a].init_done = true;
    CHECK(d.step().verb == LeaseVerb::kNothing);
    d.tasks[a].init_done = false;
    d.ranks.push_back({});
    CHECK(d.step().verb == LeaseVerb::kNothing);  // InitSideTask cannot be cut
    d.tasks[a].init_done = true;
    action = d.step();
    CHECK(action.verb == LeaseVerb::kClose);
    CHECK(action.task == a);
    CHECK(action.training_came);
  }
}

TEST_CASE("a task that may no longer run loses its lease", "[lease]") {
  Device d;
  const size_t a = d.task();
  d.bubble(0, 10 * kNsPerMs, 10 * kNsPerMs, 10 * kNsPerMs);
  REQUIRE(d.step().verb == LeaseVerb::kOpen);
  d.tasks[a].runnable = false;
  const auto action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.why == Why::kNoTask);
  CHECK(action.look_again_ns == 0);
}

TEST_CASE("nothing under the shortest lease is opened", "[lease]") {
  Device d;
  d.task();
  d.bubble(0, d.limits.shortest_ns - 1, d.limits.shortest_ns - 1, d.limits.shortest_ns - 1);
  CHECK(d.step().why == Why::kPastLengths);
}

TEST_CASE("a bubble that is probed has leases up to the probe's room, and none after it", "[lease]") {
  LeaseSnapshot snapshot;
  const RankView rank{.active = true,
                      .wait = 1,
                      .begin_ns = 1'000'000'000,
                      .low_ns = 20'000'000,
                      .mid_ns = 30'000'000,
                      .high_ns = 40'000'000};
  const TaskView task{.runnable = true};
  snapshot.ranks = {&rank, 1};
  snapshot.tasks = {&task, 1};
  snapshot.now_ns = 1'000'000'000;
  snapshot.probe_room_ns = 2'500'000;
  const LeaseAction opened = decide_lease(snapshot);
  CHECK(opened.verb == LeaseVerb::kOpen);
  CHECK(opened.deadline_ns == 1'017'500'000);
  snapshot.open_task = 0;
  snapshot.open_deadline_ns = opened.deadline_ns;
  snapshot.now_ns = opened.deadline_ns;
  const LeaseAction closed = decide_lease(snapshot);
  CHECK(closed.verb == LeaseVerb::kClose);
  CHECK(closed.why == Why::kProbe);
  snapshot.now_ns = 1'025'000'000;  // longer than its low length, too
  CHECK(decide_lease(snapshot).why == Why::kProbe);
}

TEST_CASE("while it is probed what training does alone, no lease is begun beside it") {
  LeaseSnapshot snapshot;
  const RankView rank{.active = true,
                      .wait = 1,
                      .begin_ns = 1'000'000'000,
                      .low_ns = 20'000'000,
                      .mid_ns = 30'000'000,
                      .high_ns = 40'000'000};
  const TaskView tasks[] = {{.runnable = true}, {.wants = LeaseKind::kInit}};
  snapshot.ranks = {&rank, 1};
  snapshot.tasks = tasks;
  snapshot.now_ns = 1'000'000'000;
  snapshot.only_probes = true;
  const LeaseAction action = decide_lease(snapshot);
  CHECK(action.verb == LeaseVerb::kNothing);
  CHECK(action.why == Why::kProbe);
  snapshot.ranks = {};  // no training, nothing to probe
  CHECK(decide_lease(snapshot).verb == LeaseVerb::kOpen);
}

TEST_CASE("no lease outlives the orders of its task", "[lease]") {
  Device d;
  const size_t t = d.task();
  d.tasks[t].orders_until_ns = d.clock.now_ns() + 3 * kNsPerMs;
  d.bubble(0, 10 * kNsPerMs, 12 * kNsPerMs, 20 * kNsPerMs);
  const auto opened = d.step();
  REQUIRE(opened.verb == LeaseVerb::kOpen);
  CHECK(opened.deadline_ns == d.tasks[t].orders_until_ns);

  SECTION("they expire") {
    d.clock.set(opened.deadline_ns);
    CHECK(d.step().verb == LeaseVerb::kClose);
    d.tasks[t].executing = false;
    CHECK(d.step().verb == LeaseVerb::kNothing);
    SECTION("and are renewed") {
      d.tasks[t].orders_until_ns = d.clock.now_ns() + kNsPerSec;
      CHECK(d.step().verb == LeaseVerb::kOpen);
    }
  }
  SECTION("they are renewed in time") {
    d.tasks[t].orders_until_ns = d.clock.now_ns() + kNsPerSec;
    d.clock.set(opened.deadline_ns);
    const auto next = d.step();
    CHECK(next.verb == LeaseVerb::kOpen);
    CHECK(next.deadline_ns > opened.deadline_ns);
  }
  SECTION("another task's still hold") {
    const size_t other = d.task();
    d.clock.set(opened.deadline_ns);
    CHECK(d.step().verb == LeaseVerb::kClose);
    d.tasks[t].executing = false;
    CHECK(d.step().task == other);
  }
}

TEST_CASE("an init lease is taken back when the orders expire, and given to nobody without any", "[lease]") {
  Device d;
  const size_t t = d.wants(LeaseKind::kInit);
  d.tasks[t].orders_until_ns = d.clock.now_ns();
  CHECK(d.step().verb == LeaseVerb::kNothing);
  const size_t idle = d.task();
  d.tasks[idle].when_idle = true;
  CHECK(d.step().task == idle);  // and idle leases do not stop for it
  d.tasks.erase(d.tasks.begin() + static_cast<std::ptrdiff_t>(idle));
  d.open_task = kNoTask;

  d.tasks[t].orders_until_ns = d.clock.now_ns() + kNsPerSec;
  const auto opened = d.step();
  REQUIRE(opened.verb == LeaseVerb::kOpen);
  CHECK(opened.deadline_ns == d.clock.now_ns() + d.limits.init_ns);  // InitSideTask may take longer than orders hold
  CHECK(d.step().look_again_ns == d.tasks[t].orders_until_ns);
  d.clock.tick(kNsPerSec);
  const auto closed = d.step();
  CHECK(closed.verb == LeaseVerb::kClose);
  CHECK(closed.expired);
}

namespace {

// A device whose rank is in an idle phase, of which these lengths are known.
struct InPhase : Device {
  InPhase(int64_t low, int64_t mid, int64_t high) {
    bubble(0, low, mid, high);
    ranks[0].phase = true;
  }
};

}  // namespace

TEST_CASE("a phase of unknown length has leases in slices that grow, and that move on before they end", "[lease]") {
  InPhase d(0, 0, 0);
  const size_t t = d.task(kNsPerMs);
  auto action = d.step();
  REQUIRE(action.verb == LeaseVerb::kOpen);
  CHECK(action.deadline_ns == d.clock.now_ns() + d.limits.least_slice_ns);
  int64_t slice_ns = 0;
  for (int i = 0; i < 2000 && d.clock.now_ns() < 41 * kNsPerSec; ++i) {
    action = d.step();
    REQUIRE(action.verb != LeaseVerb::kClose);
    REQUIRE(d.open_task == t);
    REQUIRE(d.open_deadline_ns > d.clock.now_ns());
    REQUIRE(action.look_again_ns > d.clock.now_ns());
    REQUIRE(action.look_again_ns <= d.open_deadline_ns);
    slice_ns = d.open_deadline_ns - d.clock.now_ns();
    d.clock.set(action.verb == LeaseVerb::kOpen ? d.clock.now_ns() + kNsPerMs : action.look_again_ns);
  }
  CHECK(d.clock.now_ns() > 20 * kNsPerSec);
  CHECK(slice_ns > d.limits.most_slice_ns / 2);
  CHECK(slice_ns <= d.limits.most_slice_ns);
  d.ranks[0].wait = 0;
  d.ranks[0].phase = false;
  action = d.step();
  CHECK(action.verb == LeaseVerb::kClose);
  CHECK(action.why == Why::kTraining);
}

TEST_CASE("a phase's lease goes to the learned end, and then on in short slices", "[lease]") {
  InPhase d(kNsPerSec, 2 * kNsPerSec, 3 * kNsPerSec);
  d.task(kNsPerMs);
  const int64_t begin = d.clock.now_ns();
  REQUIRE(d.step().deadline_ns == begin + kNsPerSec);
  d.clock.set(begin + kNsPerSec / 2);
  CHECK(d.step().verb == LeaseVerb::kNothing);
  // Before it ends, and from there to the longest that is known in slices of the least length.
  for (const int64_t at : {kNsPerSec, 2 * kNsPerSec, 29 * kNsPerSec / 10}) {
    d.clock.set(begin + at - kNsPerMs);
    const auto action = d.step();
    REQUIRE(action.verb == LeaseVerb::kOpen);
    CHECK(action.deadline_ns == begin + at - kNsPerMs + d.limits.least_slice_ns);
  }
}

TEST_CASE("a phase's lease that ends with its task's orders is not opened again and again", "[lease]") {
  InPhase d(0, 0, 0);
  const size_t t = d.task(kNsPerMs);
  const int64_t expire = d.clock.now_ns() + 4 * kNsPerMs;
  d.tasks[t].orders_until_ns = expire;
  REQUIRE(d.step().deadline_ns == expire);
  for (; d.clock.now_ns() < expire; d.clock.tick(kNsPerMs / 2)) {
    CHECK(d.step().verb == LeaseVerb::kNothing);
    CHECK(d.open_deadline_ns == expire);
  }
  CHECK(d.step().verb == LeaseVerb::kClose);
}

TEST_CASE("a phase gives nothing while another rank of the device trains, or in baseline iterations", "[lease]") {
  InPhase d(0, 0, 0);
  d.task(kNsPerMs);
  d.ranks.resize(2);
  d.ranks[1].active = true;
  CHECK(d.step().why == Why::kTraining);
  d.ranks[1] = d.ranks[0];
  d.ranks[1].phase = false;  // a wait whose length is not known
  CHECK(d.step().why == Why::kUnknown);
  d.ranks[1].low_ns = d.ranks[1].mid_ns = d.ranks[1].high_ns = 5 * kNsPerMs;
  CHECK(d.step().deadline_ns == d.clock.now_ns() + 5 * kNsPerMs);
}

TEST_CASE("a start waits for a phase that is long enough, and not for ever", "[lease]") {
  Device d;
  d.ranks.resize(1);
  RankView& rank = d.ranks[0];
  rank.active = true;
  const size_t t = d.wants(LeaseKind::kInit);
  SECTION("without phases it begins beside training") {
    CHECK(d.step().kind == LeaseKind::kInit);
  }
  rank.phase_ended_ns = d.clock.now_ns();
  rank.phases_apart_ns = 10 * kNsPerSec;
  SECTION("it begins with the next one") {
    const auto action = d.step();
    CHECK(action.verb == LeaseVerb::kNothing);
    CHECK(action.look_again_ns == d.clock.now_ns() + 20 * kNsPerSec);
    d.clock.tick(9 * kNsPerSec);
    d.bubble(0, 4 * kNsPerSec, 4 * kNsPerSec, 4 * kNsPerSec);
    rank.phase = true;
    CHECK(d.step().kind == LeaseKind::kInit);
  }
  SECTION("not at a phase's end") {
    d.bubble(0, 4 * kNsPerSec, 4 * kNsPerSec, 4 * kNsPerSec);
    rank.phase = true;
    d.clock.tick(7 * kNsPerSec / 2);
    CHECK(d.step().kind != LeaseKind::kInit);
  }
  SECTION("when no phase comes it begins all the same") {
    d.clock.tick(20 * kNsPerSec);
    CHECK(d.step().kind == LeaseKind::kInit);
  }
  SECTION("a save does not wait") {
    d.tasks[t].wants = LeaseKind::kSave;
    CHECK(d.step().kind == LeaseKind::kSave);
  }
  SECTION("a save behind it does not wait, either, and steps go on after it") {
    const size_t saving = d.wants(LeaseKind::kSave);
    d.task(kNsPerMs);
    d.bubble(0, 4 * kNsPerSec, 4 * kNsPerSec, 4 * kNsPerSec);
    rank.phase = true;
    d.clock.tick(7 * kNsPerSec / 2);  // too late for a start
    const auto action = d.step();
    CHECK(action.kind == LeaseKind::kSave);
    CHECK(action.task == saving);
    CHECK(d.step().kind == LeaseKind::kBubble);
  }
  SECTION("nor in a phase that is short, where longer ones are expected") {
    d.bubble(0, 50 * kNsPerMs, 50 * kNsPerMs, 50 * kNsPerMs);
    rank.phase = true;
    CHECK(d.step().kind != LeaseKind::kInit);
    rank.phases_apart_ns = 0;  // none are
    d.clock.tick(kNsPerMs);
    CHECK(d.step().kind == LeaseKind::kInit);
  }
  SECTION("steps of others make room for it, and go on beside it") {
    d.task(kNsPerMs);
    d.bubble(0, 4 * kNsPerSec, 4 * kNsPerSec, 4 * kNsPerSec);
    rank.phase = true;
    d.open_task = 1;
    d.open_deadline_ns = d.clock.now_ns() + kNsPerSec;
    d.tasks[1].executing = true;
    CHECK(d.step().verb == LeaseVerb::kClose);
    CHECK(d.step().verb == LeaseVerb::kNothing);  // it still executes
    d.tasks[1].executing = false;
    CHECK(d.step().kind == LeaseKind::kInit);
    CHECK(d.step().kind == LeaseKind::kBubble);
  }
}

TEST_CASE("a start begins at last beside ranks whose phases never meet", "[lease]") {
  Device d;
  d.ranks.resize(2);
  d.tasks[d.wants(LeaseKind::kInit)].wants_since_ns = d.clock.now_ns();
  const int64_t wanted_ns = d.clock.now_ns();
  bool begun = false;
  for (int i = 0; i < 2000 && !begun; ++i) {
    for (size_t r = 0; r < 2; ++r) d.ranks[r].active = true, d.ranks[r].phases_apart_ns = 10 * kNsPerSec;
    RankView& leaver = d.ranks[i % 2];
    leaver.phase = false, leaver.wait = 0, leaver.phase_ended_ns = d.clock.now_ns();
    d.bubble((i + 1) % 2, kNsPerSec, kNsPerSec, kNsPerSec);
    d.ranks[(i + 1) % 2].phase = true;
    begun = d.step().kind == LeaseKind::kInit;
    d.clock.tick(kNsPerSec);
  }
  REQUIRE(begun);
  CHECK(d.clock.now_ns() - wanted_ns > d.limits.patience_ns / 2);
}

TEST_CASE("a page that says that its phase lasts a day holds no start up for longer than is waited for one",
          "[lease]") {
  Device d;
  d.tasks[d.wants(LeaseKind::kInit)].wants_since_ns = d.clock.now_ns();
  d.bubble(0, 1, 1, 24 * 3600 * kNsPerSec);
  d.ranks[0].phase = true;
  d.clock.tick(kNsPerMs);
  d.ranks[0].phases_apart_ns = kNsPerSec, d.ranks[0].phase_ended_ns = 1;
  d.ranks[0].low_ns = 300 * kNsPerMs;
  d.clock.tick(200 * kNsPerMs);
  CHECK(d.step().kind != LeaseKind::kInit);
  d.clock.tick(d.limits.patience_ns);
  LeaseAction action = d.step();
  CHECK(action.kind == LeaseKind::kInit);
}
