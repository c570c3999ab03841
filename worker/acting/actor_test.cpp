#include "acting/actor.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "acting/awake_budget.hpp"
#include "acting/fake_pages_test_support.hpp"
#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::FakeProcesses;
using freeride::worker::testing::FakeRank;
using freeride::worker::testing::FakeTask;

namespace {

constexpr int64_t kMs = kNsPerMs;
constexpr uint64_t kRank = 1;

struct Rig {
  EventRing events;
  FakeProcesses processes;
  ActorConfig config = [] {
    ActorConfig c;
    c.task.grace_ns = 10 * kMs;
    c.task.hang_ns = 1000 * kMs;
    return c;
  }();
  Actor actor{config, processes, events};
  WaitSet waits;
  FakeClock clock{100 * kNsPerSec};
  std::vector<std::unique_ptr<FakeTask>> tasks;
  FakeRank rank;

  explicit Rig(bool with_rank = true) {
    if (!with_rank) return;
    rank.learn(1, 20 * kMs, 30 * kMs, 40 * kMs);
    rank.learn(2, 20 * kMs, 30 * kMs, 40 * kMs);
    actor.add_rank(rank.source(kRank));
  }
  int64_t now() const { return clock.now_ns(); }
  Actor::Next step() {
    waits.clear();
    return actor.step(now(), waits);
  }
  FakeTask& add(bool initialised = true, bool program = false) {
    const uint64_t id = tasks.size() + 1;
    tasks.push_back(std::make_unique<FakeTask>(id, processes));
    FakeTask& task = *tasks.back();
    task.source()->program = program;
    actor.add_task(task.source());
    actor.set_process(id, task.pid(), nullptr);
    if (initialised) task.initialised(now());
    return task;
  }
  std::vector<ActEvent> drain(ActEvent::Kind kind) {
    std::vector<ActEvent> found;
    ActEvent event;
    while (events.pop(event)) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("a bubble opens a lease, its end takes it back", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.rank.begin(rig.now());
  const auto next = rig.step();
  auto lease = task.lease();
  CHECK(lease.kind == FREERIDE_LEASE_BUBBLE);
  CHECK(lease.order == FREERIDE_ORDER_RUN);
  CHECK(lease.deadline_ns == static_cast<uint64_t>(rig.now() + 20 * kMs));
  CHECK(lease.begin_ns == static_cast<uint64_t>(rig.now()));
  CHECK(next.look_ns == rig.now() + Actor::kStartNs);  // to tell the supervisor
  CHECK(next.in_window);
  const uint64_t id = lease.lease_id;
  rig.clock.tick(Actor::kStartNs);
  CHECK(rig.step().look_ns == rig.now() + 20 * kMs - Actor::kStartNs);
  rig.clock.tick(20 * kMs - Actor::kStartNs);
  rig.step();
  lease = task.lease();
  CHECK(lease.lease_id == id + 1);
  CHECK(lease.deadline_ns == static_cast<uint64_t>(rig.now() + 10 * kMs));
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(rig.actor.step(rig.now(), rig.waits).in_window == false);
}

TEST_CASE("a GPU's mark opens no lease before the hook has written when the bubble began", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(15 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  // An iteration's last wait is over, and the next one's first begins at once: the page still has the older begin.
  auto& page = rig.rank.page();
  page.state_word = FREERIDE_STATE(page.iteration + 1, 1);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(kMs / 10);
  page.begin_ns = static_cast<uint64_t>(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(task.lease().deadline_ns == static_cast<uint64_t>(rig.now() + 20 * kMs));
}

TEST_CASE("no timer near at hand is set before the first step, and the deadline's is set after it", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(18 * kMs);
  CHECK(rig.step().look_ns == rig.now() + Actor::kStartNs);  // it might still start: 2 ms are left
  task.start(rig.now());
  CHECK(rig.step().look_ns == rig.now() + 2 * kMs);
}

TEST_CASE("a bubble's end says who worked in it, and from when until when", "[actor]") {
  Rig rig;
  rig.add();
  FakeTask& task = rig.add();
  rig.actor.set_order(1, FREERIDE_ORDER_PAUSE, rig.now());
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  const int64_t first_ns = rig.now();
  task.start(first_ns);
  rig.clock.tick(3 * kMs);
  task.step_done(rig.now(), 3 * kMs);
  const int64_t paused_ns = rig.now();
  task.pause(paused_ns);
  rig.step();
  rig.clock.tick(2 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  // And one in which it does nothing.
  rig.clock.tick(kMs);
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 2);
  CHECK(ends[0].task == task.source()->id);
  CHECK(ends[0].side_begin_ns == first_ns);
  CHECK(ends[0].side_end_ns == paused_ns);
  CHECK(ends[1].side_begin_ns == 0);
  CHECK(ends[1].side_end_ns == 0);
}

TEST_CASE("where several work in a bubble, its end says from when until when any did", "[actor]") {
  // Whoever is looked at first: the one that works first, the other, or one that only had a lease.
  const bool swap = GENERATE(false, true);
  Rig rig;
  FakeTask& one = rig.add();
  FakeTask& two = rig.add();
  FakeTask& first = swap ? two : one;
  FakeTask& second = swap ? one : two;
  rig.actor.set_order(second.source()->id, FREERIDE_ORDER_PAUSE, rig.now());
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  const int64_t first_ns = rig.now();
  first.start(rig.now());
  rig.clock.tick(3 * kMs);
  first.step_done(rig.now(), 3 * kMs);
  first.pause(rig.now());
  rig.actor.set_order(second.source()->id, FREERIDE_ORDER_RUN, rig.now());
  rig.actor.set_order(first.source()->id, FREERIDE_ORDER_PAUSE, rig.now());
  rig.step();
  REQUIRE(second.lease().kind == FREERIDE_LEASE_BUBBLE);
  const bool works = GENERATE(true, false);
  int64_t paused_ns = rig.now();
  if (works) {
    rig.clock.tick(kMs);
    second.start(rig.now());
    rig.clock.tick(2 * kMs);
    second.step_done(rig.now(), 2 * kMs);
    second.pause(rig.now());
    paused_ns = rig.now();
  }
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].task == (works ? second : first).source()->id);
  CHECK(ends[0].side_begin_ns == first_ns);
  CHECK(ends[0].side_end_ns == paused_ns);
  CHECK(ends[0].harvested_ns == (works ? 5 : 3) * kMs);
}

// In a bubble: a step of 4 ms, and 3 ms of another one.
static FakeTask& begin_second_step(Rig& rig) {
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  task.start(rig.now());
  rig.clock.tick(4 * kMs);
  task.step_done(rig.now(), 4 * kMs);
  task.start(rig.now());
  rig.clock.tick(3 * kMs);
  return task;
}

TEST_CASE("what a task had done in the bubble in which it ended is harvest", "[actor]") {
  Rig rig;
  FakeTask& task = begin_second_step(rig);
  rig.actor.remove_task(task.source()->id, rig.now());
  rig.clock.tick(2 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].harvested_ns == 4 * kMs);
}

TEST_CASE("harvest is step time within the bubble; a step across its end counts by half", "[actor]") {
  Rig rig;
  FakeTask& task = begin_second_step(rig);
  task.execute(3 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  CHECK(rig.drain(ActEvent::Kind::kBubbleEnd).empty());  // its overrun is still being measured
  // It executes 2 ms more and pauses.
  rig.clock.tick(50 * kMs);
  task.step_done(rig.now(), 2 * kMs);
  task.pause(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].id == kRank);
  CHECK(ends[0].leased);
  CHECK(ends[0].type == 'B');
  CHECK(ends[0].harvested_ns == 7 * kMs);
  CHECK(ends[0].overrun_ns == 2 * kMs);
  CHECK(ends[0].end_ns - ends[0].begin_ns == 8 * kMs);
  CHECK(task.source()->harvested_ns == 7 * kMs);
  CHECK(task.source()->overrun_ns == 2 * kMs);
  CHECK_FALSE(task.killed());
}

TEST_CASE("execution that waits for the next bubble is no overrun", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  rig.clock.tick(5 * kMs);
  task.execute(5 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  rig.clock.tick(400 * kMs);  // starved: no CPU time
  rig.step();
  CHECK_FALSE(task.killed());
  rig.rank.begin(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].overrun_ns == 0);
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  // The rest of that step, in this bubble, is harvest of this one; the wait between is nobody's.
  rig.clock.tick(3 * kMs);
  task.step_done(rig.now(), 3 * kMs);
  task.pause(rig.now());
  rig.rank.end(rig.now());
  rig.step();
  const auto second = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(second.size() == 1);
  CHECK(second[0].harvested_ns == 3 * kMs);
}

TEST_CASE("execution past the end by more than the grace period kills", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  rig.clock.tick(5 * kMs);
  task.execute(5 * kMs);
  rig.rank.end(rig.now());
  auto next = rig.step();
  REQUIRE(next.look_ns > rig.now());
  rig.clock.set(next.look_ns);
  task.execute(11 * kMs);
  next = rig.step();
  CHECK(task.killed());
  CHECK(next.tell_now);
  const auto kills = rig.actor.take_kills();
  REQUIRE(kills.size() == 1);
  CHECK(kills[0].task == 1);
  CHECK(kills[0].verdict.limit == "grace 10 ms");
  CHECK(kills[0].verdict.transition == "RunNextStep");
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].overrun_ns == 11 * kMs);
  // Dead: no lease any more, whatever its page says.
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("a task that has finished stops under its own limit, not the last lease's", "[actor]") {
  Rig rig;
  rig.config.task.by_cpu_clock = GENERATE(true, false);
  const int64_t part = rig.config.task.by_cpu_clock ? 10 : 1;  // of the time, what it executes
  rig.config.task.stop_ns = 500 * kMs;
  Actor actor(rig.config, rig.processes, rig.events);
  actor.add_rank(rig.rank.source(kRank));
  FakeTask task(1, rig.processes);
  actor.add_task(task.source());
  actor.set_process(1, task.pid(), nullptr);
  task.initialised(rig.now());
  const auto look = [&](int64_t after_ms, int64_t executed_ms) {
    rig.clock.tick(after_ms * kMs);
    task.execute(executed_ms * kMs);
    rig.waits.clear();
    return actor.step(rig.now(), rig.waits);
  };
  rig.rank.begin(rig.now());
  look(0, 0);
  task.start(rig.now());
  look(5, 0);
  task.step_done(rig.now(), 5 * kMs);
  task.pause(rig.now());
  task.answer().transition = FREERIDE_IN_STOP;  // its work is done: it frees what it has
  look(1, 1);
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.rank.end(rig.now());
  look(0, 0);
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].overrun_ns == 0);
  rig.rank.begin(rig.now());  // no lease any more
  look(100, 100 / part);
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  look(100, 100 / part);
  CHECK_FALSE(task.killed());
  SECTION("and is not killed for what its process does on its way out") {
    task.answer().state = FREERIDE_STATE_STOPPED;
    task.answer().transition = FREERIDE_IN_NONE;
    look(200, 200 / part);
    CHECK_FALSE(task.killed());
  }
  SECTION("and goes on executing no longer for saying so") {
    task.answer().transition = FREERIDE_IN_STEP;
    task.answer().state = FREERIDE_STATE_RUNNING;
    const auto next = look(250, 250 / part);
    CHECK_FALSE(task.killed());
    rig.clock.set(next.look_ns);
    look(300, 100 / part);
    CHECK(task.killed());
    const auto kills = actor.take_kills();
    REQUIRE(kills.size() == 1);
    CHECK(kills[0].verdict.limit == "stop 500 ms");
  }
}

TEST_CASE("a step that never ends is killed though every bubble opens a new lease", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  int bubbles = 0;
  for (; bubbles < 20 && !task.killed(); ++bubbles) {
    rig.clock.tick(15 * kMs);
    task.execute(15 * kMs);
    rig.rank.end(rig.now());
    rig.step();
    rig.clock.tick(3 * kMs);
    task.execute(3 * kMs);  // past the end, less than the grace period
    rig.rank.begin(rig.now());
    rig.step();
    rig.rank.finish_iteration(rig.now());
  }
  CHECK(task.killed());
  CHECK(bubbles < 6);
}

TEST_CASE("a hung step is killed though every bubble opens a new lease", "[actor]") {
  Rig rig;
  rig.processes.runnable = false;  // it sleeps
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  int bubbles = 0;
  for (; bubbles < 100 && !task.killed(); ++bubbles) {
    rig.clock.tick(20 * kMs);
    rig.rank.end(rig.now());
    rig.step();
    rig.clock.tick(20 * kMs);
    rig.rank.finish_iteration(rig.now());
    rig.rank.begin(rig.now());
    rig.step();
  }
  CHECK(task.killed());
  CHECK(bubbles >= 24);  // not before the hang limit of 1 s
  CHECK(rig.actor.take_kills().at(0).verdict.limit == "hang 1000 ms");
}

TEST_CASE("without a trainer and with no lease to give, nothing is looked at at once", "[actor]") {
  Rig rig;
  rig.add();
  rig.step();
  rig.actor.remove_rank(kRank, rig.now());
  rig.step();
  rig.clock.tick(kMs);
  const int64_t look_ns = rig.step().look_ns;
  CHECK((look_ns == 0 || look_ns > rig.now()));
}

TEST_CASE("a task that training keeps from executing is not hung", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  rig.clock.tick(5 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  for (int i = 0; i < 20; ++i) {  // 10 s without a core
    rig.clock.tick(500 * kMs);
    rig.step();
  }
  CHECK_FALSE(task.killed());
  task.step_done(rig.now(), kMs);
  task.pause(rig.now());
  rig.step();
  CHECK(rig.drain(ActEvent::Kind::kBubbleEnd).at(0).overrun_ns == kMs);
}

TEST_CASE("a starved task that happens to sleep when it is looked at is not hung", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  rig.clock.tick(5 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  rig.clock.tick(200 * kMs);
  rig.step();
  // It had no core for 2 s, then some, and sleeps for a moment within its step.
  rig.clock.tick(2000 * kMs);
  rig.processes.starved_ns = 2000 * kMs;
  rig.processes.runnable = false;
  rig.step();
  CHECK_FALSE(task.killed());
  // Asleep for the whole limit, it hangs.
  rig.clock.tick(700 * kMs);
  rig.step();
  CHECK_FALSE(task.killed());
  rig.clock.tick(200 * kMs);
  rig.step();
  CHECK(task.killed());
  CHECK(rig.actor.take_kills().at(0).verdict.limit == "hang 1000 ms");
}

TEST_CASE("a task that says it has paused and goes on is killed", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.step();
  for (int i = 0; i < 3; ++i) {
    rig.clock.tick(kNsPerSec);
    rig.step();
  }
  CHECK_FALSE(task.killed());
  task.execute(9 * kMs);  // the grace period and what answering wakes takes
  rig.clock.tick(kNsPerSec);
  rig.step();
  CHECK_FALSE(task.killed());
  task.execute(200 * kMs);
  rig.clock.tick(kNsPerSec);
  rig.step();
  CHECK(task.killed());
  const auto kills = rig.actor.take_kills();
  REQUIRE(kills.size() == 1);
  CHECK(kills[0].verdict.message.find("said that it was paused") != std::string::npos);
}

namespace {

// A GPU's rig: execution is wall time, and processes are stopped between leases.
struct GpuRig : Rig {
  GpuRig() : Rig(true) {
    config.task.by_cpu_clock = false;
    config.task.stops = true;
    actor.~Actor();
    new (&actor) Actor(config, processes, events);
    actor.add_rank(rank.source(kRank));
  }
  bool stopped(FakeTask& task) { return processes.stopped.count(task.pid()) != 0; }
};

}  // namespace

TEST_CASE("between leases a GPU task's process is stopped, and goes on before its lease is written", "[actor][stop]") {
  GpuRig rig;
  FakeTask& task = rig.add();
  rig.step();
  CHECK(rig.stopped(task));
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK_FALSE(rig.stopped(task));
  task.start(rig.now());
  rig.clock.tick(5 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  CHECK_FALSE(rig.stopped(task));  // its step waits for its kernels: it drains first, within the grace period
  task.step_done(rig.now(), 0);
  task.pause(rig.now());
  rig.step();
  CHECK(rig.stopped(task));
}

TEST_CASE("a stopped task hears an order to stop, and one to save", "[actor][stop]") {
  GpuRig rig;
  FakeTask& task = rig.add();
  rig.step();
  REQUIRE(rig.stopped(task));
  rig.actor.set_order(1, FREERIDE_ORDER_PAUSE, rig.now());
  rig.step();
  CHECK(rig.stopped(task));
  rig.actor.ask_to_save(1, true);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_SAVE);
  CHECK_FALSE(rig.stopped(task));
  task.answer().saved_lease = task.lease().lease_id;
  rig.step();
  rig.step();
  CHECK(rig.stopped(task));
  rig.actor.set_order(1, FREERIDE_ORDER_STOP, rig.now());
  CHECK_FALSE(rig.stopped(task));
  rig.step();
  CHECK_FALSE(rig.stopped(task));
}

TEST_CASE("whoever claims a transition is not stopped, and is killed in the end", "[actor][stop]") {
  GpuRig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  rig.rank.end(rig.now());
  task.start(rig.now());
  rig.step();
  CHECK_FALSE(rig.stopped(task));
  rig.clock.tick(1001 * kMs);
  rig.step();
  CHECK(task.killed());
}

TEST_CASE("a process that goes on by itself while it is stopped is killed", "[actor][stop]") {
  GpuRig rig;
  FakeTask& task = rig.add();
  rig.step();
  REQUIRE(rig.stopped(task));
  for (int i = 0; i < 20 && !task.killed(); ++i) {
    rig.clock.tick(TaskProcess::kTakesHoldNs);
    rig.step();
    task.execute(5 * kMs);  // of 100: a timer wakes it, seldom enough that no single look finds much
    rig.clock.tick(100 * kMs);
    rig.rank.begin(rig.now());
    rig.step();
    rig.clock.tick(kMs);
    rig.rank.end(rig.now());
    rig.step();
    rig.rank.finish_iteration(rig.now());
  }
  rig.clock.tick(1000 * kMs);
  rig.step();
  CHECK(task.killed());
  CHECK(task.source()->killed_verdict.cause == policy::Cause::kUnleased);
  CHECK(task.source()->killed_verdict.message.find("while its process was stopped") != std::string::npos);
}

TEST_CASE("what a stop takes to take hold is no execution, over many bubbles", "[actor][stop]") {
  GpuRig rig;
  FakeTask& task = rig.add();
  rig.step();
  for (int i = 0; i < 500; ++i) {
    task.execute(3 * kMs);  // a thread of it spins while the signal is on its way
    rig.clock.tick(TaskProcess::kTakesHoldNs);
    rig.step();
    rig.clock.tick(20 * kMs);
    rig.rank.begin(rig.now());
    rig.step();
    rig.clock.tick(kMs);
    rig.rank.end(rig.now());
    CHECK(rig.step().look_ns <= rig.now() + TaskProcess::kTakesHoldNs);
    rig.rank.finish_iteration(rig.now());
  }
  CHECK_FALSE(task.killed());
}

TEST_CASE("to say that it stops buys a tenth of a stop's time in execution", "[actor][rights]") {
  Rig rig(false);
  FakeTask& task = rig.add();
  rig.step();
  task.answer().transition = FREERIDE_IN_STOP;
  const int64_t most_ns = rig.config.task.stop_ns / policy::Rights::kUnorderedShare;
  for (int64_t executed_ns = 0; executed_ns <= most_ns; executed_ns += 100 * kMs) {
    rig.step();
    REQUIRE_FALSE(task.killed());
    rig.clock.tick(100 * kMs);
    task.execute(100 * kMs);
  }
  rig.step();
  CHECK(task.killed());
  const auto kills = rig.actor.take_kills();
  REQUIRE(kills.size() == 1);
  CHECK(kills[0].verdict.cause == policy::Cause::kSlowTransition);
  CHECK(kills[0].verdict.message.find("nobody had ordered") != std::string::npos);
}

TEST_CASE("a pause of an hour saves up no execution", "[actor][rights]") {
  Rig rig;
  FakeTask& task = rig.add();
  for (int second = 0; second < 3600; ++second) {
    rig.clock.tick(kNsPerSec);
    rig.step();
  }
  task.execute(1000 * kMs);  // a hundredth of the hour would be 36 s
  rig.clock.tick(kNsPerSec);
  rig.step();
  CHECK(task.killed());
}

TEST_CASE("what it executes before the thread that gave it a lease goes on is under that lease", "[actor][rights]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.step();
  auto execute_once = [&, done = false]() mutable {
    if (done || task.lease().kind != FREERIDE_LEASE_BUBBLE) return;
    done = true;
    task.execute(300 * kMs);
  };
  rig.processes.before_look = execute_once;  // the host is busy: the task is faster than whoever woke it
  rig.rank.begin(rig.now());
  rig.step();
  rig.processes.before_look = nullptr;
  execute_once();
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  task.pause(rig.now());
  for (int i = 0; i < 20; ++i) {
    rig.step();
    rig.clock.tick(10 * kMs);
  }
  CHECK_FALSE(task.killed());
}

TEST_CASE("an iteration tells whether a side task was created, initialised or stopped in it", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(false);
  const auto iterate = [&] {
    rig.rank.begin(rig.now());
    rig.step();
    rig.clock.tick(kMs);
    rig.rank.end(rig.now());
    rig.step();
    rig.rank.finish_iteration(rig.now());
    rig.clock.tick(kMs);
    rig.step();
  };
  const auto told = [&] {
    const auto events = rig.drain(ActEvent::Kind::kIteration);
    REQUIRE(events.size() == 1);
    return events[0].transitions;
  };
  iterate();
  CHECK(told());  // its process loads the plugin
  task.created();
  iterate();
  CHECK(told());  // it has its init lease
  task.initialised(rig.now());
  rig.step();
  iterate();
  CHECK(told());  // in which the init lease ended
  iterate();
  CHECK_FALSE(told());
  task.answer().state = FREERIDE_STATE_SUBMITTED;  // a lie: every held-out iteration would be left out
  iterate();
  CHECK_FALSE(told());
  task.answer().state = FREERIDE_STATE_PAUSED;
  rig.actor.set_order(1, FREERIDE_ORDER_STOP, rig.now());
  iterate();
  CHECK(told());
  rig.actor.remove_task(1, rig.now());
  iterate();
  CHECK(told());
  iterate();
  CHECK_FALSE(told());
}

TEST_CASE("an init lease is given once, to a task that says it has not taken it up and executes", "[actor][rights]") {
  Rig rig(false);
  FakeTask& task = rig.add(false);
  task.created();
  rig.step();
  REQUIRE(task.lease().kind == FREERIDE_LEASE_INIT);
  const uint64_t id = task.lease().lease_id;
  task.execute(rig.config.lease.init_ns);
  rig.clock.tick(rig.config.lease.init_ns);
  rig.step();
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(task.lease().lease_id == id);
}

TEST_CASE("a liar that tries every value of the answer page executes no longer than its rights", "[actor][rights]") {
  const auto field = GENERATE(range(0u, 20u));
  const bool training = GENERATE(true, false);
  Rig rig(training);
  FakeTask& task = rig.add(false);
  task.created();
  rig.step();
  REQUIRE(task.lease().kind == FREERIDE_LEASE_INIT);
  task.initialised(rig.now());
  rig.step();
  REQUIRE(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.step();
  // From here on it executes without a lease, and says something else at each look.
  freeride_answer_page& page = task.answer();
  const std::vector<uint64_t> values{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, UINT32_MAX, INT64_MAX, UINT64_MAX};
  int64_t executed_ns = 0;
  for (size_t look = 0; !task.killed(); ++look) {
    const uint64_t value = values[look % values.size()], other = values[look / values.size() % values.size()];
    page.state = static_cast<uint32_t>(field % 2 == 0 ? value : other);
    page.transition = static_cast<uint32_t>(field % 3 == 0 ? other : value);
    auto* const words = reinterpret_cast<uint64_t*>(&page.lease_id);  // lease_id to finished
    if (field < 14) words[field] = value;
    if (field == 14) page.saved_lease = value;
    if (field == 15) page.restored = value;
    if (field == 16) page.sequence = static_cast<uint32_t>(value);
    rig.clock.tick(50 * kMs);
    task.execute(50 * kMs);
    executed_ns += 50 * kMs;
    rig.step();
    CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
    const int64_t stop_ns = rig.config.task.stop_ns / policy::Rights::kUnorderedShare;
    REQUIRE(executed_ns <= stop_ns + rig.config.task.grace_ns + kNsPerSec);  // a second: between two audits
  }
  CHECK(task.killed());
}

TEST_CASE("nobody waits for a task that was ordered to stop and does not come to its end", "[actor]") {
  Rig rig;
  FakeTask& hung = rig.add();
  FakeTask& other = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  hung.start(rig.now());
  rig.actor.set_order(1, FREERIDE_ORDER_STOP, rig.now());
  rig.step();
  CHECK(hung.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(other.lease().kind == FREERIDE_LEASE_BUBBLE);
}

TEST_CASE("counters that lie give no more harvest than bubble and CPU time", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.answer().step_ns = std::numeric_limits<uint64_t>::max() / 16;
  task.execute(2 * kMs);
  rig.clock.tick(6 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].harvested_ns == 2 * kMs);
  rig.rank.begin(rig.now());
  rig.step();
  task.answer().step_ns = 0;
  rig.clock.tick(6 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].harvested_ns == 0);
}

TEST_CASE("a program is judged by what its supervisor says that it has executed outside of leases", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(true, true);
  // The clock of its first process stands still or races: it is only one of many.
  rig.processes.cpu[task.pid()] = 5;
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  rig.clock.tick(6 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  // All are stopped 2 ms later, and 1 ms of that was executed.
  rig.clock.tick(2 * kMs);
  task.step_done(rig.now(), 0);
  task.pause(rig.now());
  task.answer().last_paused_cpu_ns = kMs;
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].harvested_ns == 6 * kMs);
  CHECK(ends[0].overrun_ns == kMs);
  rig.processes.cpu[task.pid()] = 1000 * kMs;
  rig.clock.tick(2000 * kMs);
  rig.step();
  CHECK_FALSE(task.killed());
  // Nobody signals it from here while it is paused; its supervisor does.
  CHECK(rig.processes.stopped.empty());
  // One of its processes executes between leases.
  task.answer().last_paused_cpu_ns = 1000 * kMs;
  rig.clock.tick(2000 * kMs);
  rig.step();
  CHECK(task.killed());
  CHECK(task.source()->killed_verdict.kind == policy::VerdictKind::kOverran);
}

TEST_CASE("a program that executes on while it is to end has been stopped, if by force", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(true, true);
  rig.step();
  rig.actor.set_order(task.source()->id, FREERIDE_ORDER_END, rig.now());
  rig.actor.ask_to_save(task.source()->id, true);
  rig.step();
  REQUIRE(task.lease().kind == FREERIDE_LEASE_SAVE);
  // In its exit the kernel frees what it has, and no signal holds it: past the lease's end, for longer than its grace.
  const auto deadline_ns = static_cast<int64_t>(task.lease().deadline_ns);
  rig.clock.tick(deadline_ns - rig.now() + kMs);
  rig.step();
  task.answer().last_paused_cpu_ns = 1000 * kMs;
  rig.clock.tick(2000 * kMs);
  rig.step();
  REQUIRE(task.killed());
  CHECK(task.source()->killed_verdict.kind == policy::VerdictKind::kStopped);
  CHECK(task.source()->killed_verdict.cause == policy::Cause::kOrder);
  CHECK(task.source()->killed_verdict.message.starts_with("by force: executed "));
}

TEST_CASE("a sleeping program on a CPU harvests nothing, one that executes what it executed", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(true, true);
  // Its supervisor stops it, and says then what its processes have executed.
  const auto bubble = [&](int64_t executed_ns) {
    rig.rank.begin(rig.now());
    rig.step();
    task.start(rig.now());
    rig.clock.tick(6 * kMs);
    rig.rank.end(rig.now());
    rig.step();
    rig.clock.tick(kMs);
    task.answer().step_ns += static_cast<uint64_t>(executed_ns);
    task.answer().steps += 1;
    task.pause(rig.now());
    rig.step();
    const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
    REQUIRE(ends.size() == 1);
    rig.rank.finish_iteration(rig.now());
    rig.clock.tick(10 * kMs);
    return ends[0].harvested_ns;
  };
  CHECK(bubble(0) == 0);
  CHECK(bubble(4 * kMs) == 4 * kMs);
  CHECK(bubble(9 * kMs) == 6 * kMs);  // the window was no longer
  CHECK(task.source()->harvested_ns == 10 * kMs);
}

TEST_CASE("a program that is to end has a save lease, and no other", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(true, true);
  rig.step();
  rig.actor.set_order(task.source()->id, FREERIDE_ORDER_END, rig.now());
  rig.actor.ask_to_save(task.source()->id, true);
  rig.step();
  CHECK(task.lease().order == FREERIDE_ORDER_END);
  CHECK(task.lease().kind == FREERIDE_LEASE_SAVE);
  rig.actor.set_order(task.source()->id, FREERIDE_ORDER_STOP, rig.now());
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(task.lease().order == FREERIDE_ORDER_STOP);
}

TEST_CASE("a bubble page of garbage opens nothing and costs bounded work", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  auto& page = rig.rank.page();
  const auto no_lease = [&] {
    rig.step();
    return task.lease().kind == FREERIDE_LEASE_NONE;
  };
  page.begin_ns = 0;
  page.state_word = FREERIDE_STATE(7, 1);
  CHECK(no_lease());
  page.begin_ns = static_cast<uint64_t>(rig.now() + 3600 * kNsPerSec);
  CHECK(no_lease());
  page.begin_ns = ~uint64_t{0};
  CHECK(no_lease());
  page.begin_ns = static_cast<uint64_t>(rig.now());
  page.state_word = FREERIDE_STATE(7, 0xffff);  // no such slot
  CHECK(no_lease());
  page.begin_ns = static_cast<uint64_t>(rig.now() - 1);
  page.state_word = FREERIDE_STATE(8, 1);
  page.hook_state = 77;
  CHECK(no_lease());
  page.hook_state = FREERIDE_HOOK_DISABLED;
  CHECK(no_lease());
  page.hook_state = FREERIDE_HOOK_ACTIVE;
  page.learned[0] = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, 0, 0};
  CHECK(no_lease());
  const int64_t decade = 10ll * 365 * 86400 * kNsPerSec;
  page.learned[0] = {static_cast<uint64_t>(decade), 0, 0, 0, 0};
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(static_cast<int64_t>(task.lease().deadline_ns) <= rig.now() + rig.config.lease.longest_ns);
  rig.drain(ActEvent::Kind::kBubbleEnd);
  page.bubbles = ~uint64_t{0} - 5;
  page.iteration = ~uint64_t{0} - 5;
  for (int i = 0; i < 10; ++i) {
    page.bubbles += uint64_t{1} << 40;
    page.iteration += uint64_t{1} << 33;
    rig.step();
  }
  CHECK(rig.drain(ActEvent::Kind::kBubbleEnd).empty());
}

TEST_CASE("two ranks: a lease only while both are in bubbles, and both bubbles get the harvest", "[actor]") {
  Rig rig;
  FakeRank other(1);
  other.learn(1, 100 * kMs, 100 * kMs, 100 * kMs);
  rig.actor.add_rank(other.source(2));
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(5 * kMs);
  other.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(task.lease().deadline_ns == static_cast<uint64_t>(rig.now() + 15 * kMs));
  task.start(rig.now());
  rig.clock.tick(4 * kMs);
  task.step_done(rig.now(), 4 * kMs);
  task.pause(rig.now());
  rig.rank.end(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(kMs);
  other.end(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 2);
  CHECK(ends[0].id == kRank);
  CHECK(ends[0].harvested_ns == 4 * kMs);
  CHECK(ends[1].id == 2);
  CHECK(ends[1].harvested_ns == 4 * kMs);
}

TEST_CASE("a rank that goes takes its lease with it", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  rig.actor.remove_rank(kRank, rig.now());
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("the init lease: one at a time, once, then leases", "[actor]") {
  Rig rig;
  FakeTask& first = rig.add(false);
  FakeTask& second = rig.add(false);
  rig.step();
  CHECK(first.lease().kind == FREERIDE_LEASE_NONE);  // not created yet
  first.created();
  second.created();
  rig.step();
  CHECK(first.lease().kind == FREERIDE_LEASE_INIT);
  CHECK(second.lease().kind == FREERIDE_LEASE_NONE);
  rig.step();
  CHECK(second.lease().kind == FREERIDE_LEASE_NONE);
  first.initialised(rig.now());
  rig.step();
  CHECK(first.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(second.lease().kind == FREERIDE_LEASE_INIT);
  second.initialised(rig.now());
  rig.step();
  CHECK(second.lease().kind == FREERIDE_LEASE_NONE);
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(first.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(second.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("an initialisation that outlasts its init lease is killed in InitSideTask", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(false);
  task.created();
  rig.step();
  task.answer().transition = FREERIDE_IN_INIT;
  rig.clock.tick(rig.config.lease.init_ns);
  auto next = rig.step();
  CHECK_FALSE(task.killed());
  task.execute(50 * kMs);
  rig.clock.set(next.look_ns);
  rig.step();
  CHECK(task.killed());
  const auto kills = rig.actor.take_kills();
  REQUIRE(kills.size() == 1);
  CHECK(kills[0].verdict.transition == "InitSideTask");
}

TEST_CASE("an order to pause takes the lease back, one to stop reaches the page", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  rig.actor.set_order(1, FREERIDE_ORDER_PAUSE, rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(task.lease().order == FREERIDE_ORDER_PAUSE);
  rig.actor.set_order(1, FREERIDE_ORDER_RUN, rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  rig.actor.set_order(1, FREERIDE_ORDER_STOP, rig.now());
  CHECK(task.lease().order == FREERIDE_ORDER_STOP);
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("held-out iterations get no lease and say so", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  policy::HoldoutPlan plan;
  plan.job = "gpt";
  plan.block_iterations = 1;
  plan.share_pct = 100;
  plan.from_iteration = 1;
  auto plans = std::make_shared<PlanSet>();
  plans->merge({plan});
  rig.actor.set_plans(plans);
  rig.rank.started(rig.now());
  for (int i = 0; i < 2; ++i) {
    rig.rank.begin(rig.now());
    rig.step();
    CHECK((task.lease().kind == FREERIDE_LEASE_BUBBLE) == (i == 0));
    rig.clock.tick(5 * kMs);
    rig.rank.end(rig.now());
    rig.step();
    rig.clock.tick(5 * kMs);
    rig.rank.finish_iteration(rig.now());
    rig.step();
  }
  ActEvent event;
  int bubbles = 0, iterations = 0;
  while (rig.events.pop(event)) {
    if (event.kind == ActEvent::Kind::kBubbleEnd) {
      CHECK(event.holdout == (bubbles++ == 1));
      CHECK(event.leased == !event.holdout);
    } else if (event.kind == ActEvent::Kind::kIteration) {
      CHECK(event.holdout == (iterations++ == 1));
      CHECK(event.leased == !event.holdout);
      CHECK(event.end_ns - event.begin_ns == 10 * kMs);
      CHECK(event.bubble_ns == 5 * kMs);
    }
  }
  CHECK(bubbles == 2);
  CHECK(iterations == 2);
}

TEST_CASE("bubbles that came and went between two looks are still measured", "[actor]") {
  Rig rig;
  rig.step();
  rig.rank.begin(rig.now());
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  rig.rank.begin(rig.now());
  rig.clock.tick(2 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 2);
  CHECK(ends[0].wait == 1);
  CHECK(ends[1].wait == 2);
  CHECK_FALSE(ends[1].leased);
}

TEST_CASE("from one bubble straight into another the lease is a new one", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  const auto first = task.lease();
  rig.clock.tick(2 * kMs);
  rig.rank.end(rig.now());
  rig.rank.begin(rig.now());
  rig.step();
  const auto second = task.lease();
  CHECK(second.kind == FREERIDE_LEASE_BUBBLE);
  CHECK(second.lease_id > first.lease_id);
  CHECK(second.begin_ns == static_cast<uint64_t>(rig.now()));
  CHECK(second.deadline_ns == static_cast<uint64_t>(rig.now() + 20 * kMs));
}

TEST_CASE("a lease given back goes to the other task", "[actor]") {
  Rig rig;
  FakeTask& first = rig.add();
  FakeTask& second = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  REQUIRE(first.lease().kind == FREERIDE_LEASE_BUBBLE);
  first.start(rig.now());
  rig.clock.tick(kMs);
  first.step_done(rig.now(), kMs);
  first.pause(rig.now());
  rig.step();
  CHECK(first.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(second.lease().kind == FREERIDE_LEASE_BUBBLE);
  second.answer().skipped += 1;
  rig.step();
  CHECK(second.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("when idle: only with leave, and only without a trainer", "[actor]") {
  Rig rig(false);
  FakeTask& waits_for_training = rig.add();
  rig.step();
  CHECK(waits_for_training.lease().kind == FREERIDE_LEASE_NONE);
  rig.tasks.push_back(std::make_unique<FakeTask>(7, rig.processes));
  FakeTask& idle = *rig.tasks.back();
  idle.source()->when_idle = true;
  idle.initialised(rig.now());
  rig.actor.add_task(idle.source());
  rig.actor.set_process(7, idle.pid(), nullptr);
  rig.step();
  CHECK(idle.lease().kind == FREERIDE_LEASE_IDLE);
  rig.actor.add_rank(rig.rank.source(kRank));
  rig.step();
  CHECK(idle.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("another process on the GPU takes the idle lease back until it has gone", "[actor]") {
  Rig rig(false);
  rig.tasks.push_back(std::make_unique<FakeTask>(7, rig.processes));
  FakeTask& idle = *rig.tasks.back();
  idle.source()->when_idle = true;
  idle.initialised(rig.now());
  rig.actor.add_task(idle.source());
  rig.actor.set_process(7, idle.pid(), nullptr);
  rig.step();
  REQUIRE(idle.lease().kind == FREERIDE_LEASE_IDLE);
  rig.actor.set_other_process(true);
  rig.step();
  CHECK(idle.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(2'000 * kMs);
  rig.step();
  CHECK(idle.source()->why == policy::Why::kOtherProcess);
  rig.actor.set_other_process(false);
  rig.step();
  CHECK(idle.lease().kind == FREERIDE_LEASE_IDLE);
}

TEST_CASE("where a rank has gone, its process may train on: no idle lease on a GPU until somebody has looked",
          "[actor]") {
  Rig rig;
  const bool gpu = GENERATE(true, false);
  rig.config.task.by_cpu_clock = !gpu;
  Actor actor(rig.config, rig.processes, rig.events);
  actor.add_rank(rig.rank.source(kRank));
  rig.tasks.push_back(std::make_unique<FakeTask>(7, rig.processes));
  FakeTask& idle = *rig.tasks.back();
  idle.source()->when_idle = true;
  idle.initialised(rig.now());
  actor.add_task(idle.source());
  actor.set_process(7, idle.pid(), nullptr);
  const auto step = [&] {
    rig.waits.clear();
    actor.step(rig.now(), rig.waits);
  };
  step();
  actor.remove_rank(kRank, rig.now());
  step();
  CHECK(idle.lease().kind == (gpu ? FREERIDE_LEASE_NONE : FREERIDE_LEASE_IDLE));
  actor.set_other_process(false);
  step();
  CHECK(idle.lease().kind == FREERIDE_LEASE_IDLE);
}

TEST_CASE("a task that runs when idle lets another one get its init lease", "[actor]") {
  Rig rig(false);
  const auto add = [&](uint64_t id) -> FakeTask& {
    rig.tasks.push_back(std::make_unique<FakeTask>(id, rig.processes));
    FakeTask& task = *rig.tasks.back();
    task.source()->when_idle = true;
    rig.actor.add_task(task.source());
    rig.actor.set_process(id, task.pid(), nullptr);
    return task;
  };
  FakeTask& running = add(7);
  running.initialised(rig.now());
  rig.step();
  REQUIRE(running.lease().kind == FREERIDE_LEASE_IDLE);
  running.start(rig.now());
  FakeTask& next = add(8);
  next.created();
  rig.step();
  CHECK(running.lease().kind == FREERIDE_LEASE_IDLE);  // until its end
  rig.clock.tick(500 * kMs);
  rig.step();
  CHECK(running.lease().kind == FREERIDE_LEASE_NONE);
  running.pause(rig.now());
  rig.step();
  CHECK(next.lease().kind == FREERIDE_LEASE_INIT);
  rig.step();
  CHECK(running.lease().kind == FREERIDE_LEASE_IDLE);  // and again
}

TEST_CASE("removing the task that holds the lease frees the bubble for another", "[actor]") {
  Rig rig;
  rig.add();
  FakeTask& second = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  rig.actor.remove_task(1, rig.now());
  rig.step();
  CHECK(second.lease().kind == FREERIDE_LEASE_BUBBLE);
  rig.actor.remove_task(2, rig.now());
  rig.rank.end(rig.now());
  rig.step();
  CHECK(rig.drain(ActEvent::Kind::kBubbleEnd).size() == 1);
}

namespace {
FakeTask& add_profile(Rig& rig) {
  const uint64_t id = rig.tasks.size() + 1;
  rig.tasks.push_back(std::make_unique<FakeTask>(id, rig.processes));
  FakeTask& task = *rig.tasks.back();
  task.source()->profile = task.source()->when_idle = true;
  rig.actor.add_task(task.source());
  rig.actor.set_process(id, task.pid(), nullptr);
  task.created();
  return task;
}
}  // namespace

TEST_CASE("a profile on a device without a trainer has one profile lease, for all of it", "[actor]") {
  Rig rig(false);
  FakeTask& task = add_profile(rig);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_PROFILE);
  task.initialised(rig.now());
  task.start(rig.now());
  rig.clock.tick(50 * kMs);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_PROFILE);
  CHECK_FALSE(task.source()->in_bubbles);
}

TEST_CASE("a profile beside a training is initialised under an init lease and makes its steps in bubbles only",
          "[actor]") {
  Rig rig;
  FakeTask& task = add_profile(rig);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_INIT);
  task.initialised(rig.now());
  rig.clock.tick(kMs);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  rig.clock.tick(5 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  CHECK(task.source()->in_bubbles);
}

TEST_CASE("a trainer that comes takes a profile lease back, but for its initialisation", "[actor]") {
  Rig rig(false);
  FakeTask& task = add_profile(rig);
  rig.step();
  rig.actor.add_rank(rig.rank.source(kRank));
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_PROFILE);  // InitSideTask can't be cut; it has this one lease
  task.initialised(rig.now());
  task.start(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  SECTION("and it is not killed if it pauses") {
    rig.clock.tick(kMs);
    task.step_done(rig.now(), kMs);
    task.pause(rig.now());
    rig.step();
    rig.rank.learn(1, 20 * kMs, 30 * kMs, 40 * kMs);
    rig.rank.begin(rig.now());
    rig.step();
    CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
    CHECK_FALSE(task.killed());
  }
  SECTION("one that goes on is killed, and the verdict knows that a trainer came") {
    rig.clock.tick(11 * kMs);
    task.execute(11 * kMs);
    rig.step();
    CHECK(task.killed());
    const auto kills = rig.actor.take_kills();
    REQUIRE(kills.size() == 1);
    CHECK(kills[0].verdict.kind == policy::VerdictKind::kEvicted);
    CHECK(kills[0].verdict.cause == policy::Cause::kTrainingCame);
  }
}

TEST_CASE("an init lease that a starved task did not take up in time is given again", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add(false);
  task.created();
  rig.step();
  const auto first = task.lease();
  CHECK(first.kind == FREERIDE_LEASE_INIT);
  rig.clock.tick(rig.config.lease.init_ns);
  rig.step();
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_INIT);
  CHECK(task.lease().lease_id > first.lease_id);
  CHECK_FALSE(task.killed());
  // One that has taken it up has had it.
  task.answer().transition = FREERIDE_IN_INIT;
  rig.clock.tick(rig.config.lease.init_ns);
  rig.step();
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("the thread stays awake while a bubble is expected that somebody could use", "[actor]") {
  Rig rig;
  const auto expect = [&](int64_t until_ns) { rig.rank.page().expected_ns = static_cast<uint64_t>(until_ns); };
  expect(rig.now() + kMs);
  CHECK(rig.step().awake_ns == 0);  // no side task
  rig.add();
  rig.step();
  CHECK(rig.step().awake_ns == rig.now() + kMs);
  rig.rank.page().hook_state = FREERIDE_HOOK_DISABLED;
  CHECK(rig.step().awake_ns == 0);
  rig.rank.page().hook_state = FREERIDE_HOOK_ACTIVE;
  rig.rank.begin(rig.now());
  CHECK(rig.step().awake_ns == 0);  // it is there
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  rig.step();
  CHECK(rig.step().awake_ns == 0);              // and that was the last word
  expect(std::numeric_limits<int64_t>::max());  // centuries are nonsense
  CHECK(rig.step().awake_ns == 0);
}

TEST_CASE("staying awake takes a twentieth of the time at most", "[actor]") {
  AwakeBudget budget;
  int64_t now = kNsPerSec, awake = 0;
  for (int i = 0; i < 1000; ++i) {  // a hook that always expects something
    const int64_t until = budget.allow(now, now + kNsPerSec);
    CHECK(until - now <= AwakeBudget::kMostNs);
    if (until > now) budget.spend(until - now);
    awake += std::max<int64_t>(0, until - now);
    now = std::max(until, now) + kMs;
  }
  CHECK(awake > 0);
  CHECK(awake <= (now - kNsPerSec) / AwakeBudget::kShare + AwakeBudget::kSavedNs);
}

TEST_CASE("a process that has ended by itself is not killed, and its end is nobody's overrun", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.begin(rig.now());
  rig.step();
  task.start(rig.now());
  rig.processes.ended.insert(task.pid());
  rig.clock.tick(5 * kMs);
  task.execute(50 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  task.execute(50 * kMs);
  rig.clock.tick(100 * kMs);
  rig.step();
  CHECK_FALSE(task.killed());
  CHECK(rig.actor.take_kills().empty());
  CHECK_FALSE(task.source()->killed);
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("a kill says what was passed", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  policy::Cause cause = policy::Cause::kNone;
  rig.rank.begin(rig.now());
  rig.step();
  SECTION("execution past the end of a lease") {
    task.start(rig.now());
    rig.rank.end(rig.now());
    rig.step();
    task.execute(11 * kMs);
    rig.clock.tick(11 * kMs);
    cause = policy::Cause::kLeaseEnd;
  }
  SECTION("no pause") {
    task.start(rig.now());
    rig.processes.runnable = false;
    rig.rank.end(rig.now());
    rig.step();
    rig.clock.tick(1001 * kMs);
    cause = policy::Cause::kNoPause;
  }
  SECTION("execution without a lease") {
    rig.rank.end(rig.now());
    rig.step();
    rig.clock.tick(kNsPerSec);
    rig.step();
    task.execute(600 * kMs);
    rig.clock.tick(kNsPerSec);
    cause = policy::Cause::kUnleased;
  }
  rig.step();
  REQUIRE(task.killed());
  CHECK(task.source()->killed);
  CHECK(task.source()->killed_verdict.kind == policy::VerdictKind::kOverran);
  CHECK(task.source()->killed_verdict.cause == cause);
}

namespace {

// A second of a training with one bubble of 10 ms, in which `work` is done 1 ms after its begin.
template <class Work>
void one_second(Rig& rig, Work work) {
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  work();
  rig.step();
  rig.clock.tick(9 * kMs);
  rig.rank.end(rig.now());
  rig.step();
  rig.rank.finish_iteration(rig.now());
  rig.clock.tick(kNsPerSec);
  rig.step();
}

void make_step(Rig& rig, FakeTask& task) {
  task.start(rig.now());
  task.step_done(rig.now(), kMs);
  task.pause(rig.now());
}

}  // namespace

TEST_CASE("why: a task that makes steps has nothing in its way, between the bubbles neither", "[actor][why]") {
  Rig rig;
  FakeTask& task = rig.add();
  for (int i = 0; i < 3; ++i) one_second(rig, [&] { make_step(rig, task); });
  CHECK(task.source()->why == policy::Why::kNone);
  for (int i = 0; i < 5; ++i) {
    rig.clock.tick(kNsPerSec);
    rig.step();
  }
  CHECK(task.source()->why == policy::Why::kNone);
  CHECK(task.source()->longest_lease_ns == 20 * kMs);
  for (int i = 0; i < 60; ++i) {  // a training without bubbles
    rig.clock.tick(kNsPerSec);
    rig.step();
  }
  CHECK(task.source()->why == policy::Why::kTraining);
  CHECK(task.source()->longest_lease_ns == 0);
}

TEST_CASE("why: what stood in the way for the latest window", "[actor][why]") {
  Rig rig;
  FakeTask& task = rig.add();
  policy::Why why = policy::Why::kNone;
  SECTION("no length is known") {
    rig.rank.learn(1, 0, 0, 0);
    why = policy::Why::kUnknown;
  }
  SECTION("the bubbles are too short") {
    rig.rank.learn(1, 1000, 1000, 1000);
    why = policy::Why::kPastLengths;
  }
  SECTION("the iteration is held out") {
    policy::HoldoutPlan plan;
    plan.job = "gpt";
    plan.block_iterations = 1;
    plan.share_pct = 100;
    auto plans = std::make_shared<PlanSet>();
    plans->merge({plan});
    rig.actor.set_plans(plans);
    why = policy::Why::kHoldout;
  }
  SECTION("another task is preferred") {
    auto other = std::make_unique<FakeTask>(9, rig.processes);
    other->source()->priority = 5;
    rig.actor.add_task(other->source());
    rig.actor.set_process(9, other->pid(), nullptr);
    other->initialised(rig.now());
    rig.tasks.push_back(std::move(other));
    why = policy::Why::kOtherLease;
  }
  one_second(rig, [] {});
  one_second(rig, [] {});
  CHECK(task.source()->why == why);
  // An order to run begins anew.
  rig.actor.set_order(1, FREERIDE_ORDER_PAUSE, rig.now());
  rig.actor.set_order(1, FREERIDE_ORDER_RUN, rig.now());
  CHECK(task.source()->why == policy::Why::kNone);
}

TEST_CASE("why: steps that do not fit, until one does", "[actor][why]") {
  Rig rig;
  FakeTask& task = rig.add();
  one_second(rig, [&] { make_step(rig, task); });
  for (int i = 0; i < 19; ++i) one_second(rig, [&] { task.answer().skipped += 1; });
  CHECK(task.source()->why == policy::Why::kNone);
  for (int i = 0; i < 3; ++i) one_second(rig, [&] { task.answer().skipped += 1; });
  CHECK(task.source()->why == policy::Why::kStepTooLong);
  one_second(rig, [&] { make_step(rig, task); });
  CHECK(task.source()->why == policy::Why::kNone);
}

TEST_CASE("why: steps that do not fit since other processes have the cores", "[actor][why]") {
  Rig rig;
  FakeTask& task = rig.add();
  const bool starved = GENERATE(true, false);
  const auto bubble = [&](auto executes) {
    rig.rank.begin(rig.now());
    rig.step();
    executes();
    rig.rank.end(rig.now());
    rig.step();
    rig.rank.finish_iteration(rig.now());
    rig.clock.tick(5 * kMs);
  };
  // Steps of 10 ms; then none fits any more.
  for (int i = 0; i < 5; ++i) {
    bubble([&] {
      task.start(rig.now());
      rig.clock.tick(10 * kMs);
      task.step_done(rig.now(), starved ? kMs : 9 * kMs);
      task.pause(rig.now());
    });
  }
  rig.clock.tick(1000 * kMs);
  rig.step();
  for (int i = 0; i < 30; ++i) {
    bubble([&] {
      rig.clock.tick(10 * kMs);
      task.answer().skipped += 1;
    });
  }
  rig.clock.tick(1000 * kMs);
  rig.step();
  CHECK(task.source()->why == (starved ? policy::Why::kStarved : policy::Why::kStepTooLong));
}

TEST_CASE("why: a hook that is off goes before steps that did not fit", "[actor][why]") {
  Rig rig;
  FakeTask& task = rig.add();
  one_second(rig, [&] { make_step(rig, task); });
  for (int i = 0; i < 22; ++i) one_second(rig, [&] { task.answer().skipped += 1; });
  CHECK(task.source()->why == policy::Why::kStepTooLong);
  rig.rank.page().hook_state = FREERIDE_HOOK_DISABLED;
  rig.clock.tick(kNsPerSec);
  rig.step();
  CHECK(task.source()->why == policy::Why::kInactive);
}

TEST_CASE("why: without a training, and with one whose hook is off", "[actor][why]") {
  Rig rig(false);
  FakeTask& task = rig.add();
  const auto second = [&] {
    rig.clock.tick(kNsPerSec);
    rig.step();
  };
  rig.step();
  second();
  CHECK(task.source()->why == policy::Why::kDeviceIdle);
  rig.rank.page().hook_state = FREERIDE_HOOK_DISABLED;
  rig.actor.add_rank(rig.rank.source(kRank));
  second();
  CHECK(task.source()->why == policy::Why::kInactive);
}

TEST_CASE("a task whose orders have expired gets no lease, also where the host was suspended meanwhile", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  const auto orders_until = [&](int64_t boottime_ns) {
    task.source()->lease->orders_until_ns = static_cast<uint64_t>(boottime_ns);
  };
  orders_until(rig.now() + 5 * kMs);
  rig.rank.begin(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(task.lease().deadline_ns == static_cast<uint64_t>(rig.now() + 5 * kMs));
  rig.clock.tick(5 * kMs);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  orders_until(rig.now() + kNsPerSec);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  rig.waits.clear();
  rig.actor.step(rig.now(), rig.waits, 2 * kNsPerSec);
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
}

TEST_CASE("what is in InitSideTask when its orders expire is lost, not at fault", "[actor]") {
  Rig rig(false);
  FakeTask& task = rig.add(false);
  task.created();
  task.source()->lease->orders_until_ns = static_cast<uint64_t>(rig.now() + kNsPerSec);
  rig.step();
  REQUIRE(task.lease().kind == FREERIDE_LEASE_INIT);
  task.answer().transition = FREERIDE_IN_INIT;
  task.answer().sequence += 1;
  rig.clock.tick(kNsPerSec);
  task.execute(kNsPerSec);
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(20 * kMs);
  task.execute(20 * kMs);
  rig.step();
  REQUIRE(task.killed());
  const auto kills = rig.actor.take_kills();
  REQUIRE(kills.size() == 1);
  CHECK(kills[0].verdict.kind == policy::VerdictKind::kLost);
  CHECK(kills[0].verdict.cause == policy::Cause::kExpired);
}

TEST_CASE("an idle phase is a bubble of any length: its lease moves on with it, and its end takes it back", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.step();
  rig.rank.begin_phase(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(task.lease().begin_ns == static_cast<uint64_t>(rig.now()));
  task.start(rig.now());
  const int64_t begin_ns = rig.now();
  while (rig.now() < begin_ns + 3 * kNsPerSec) {
    rig.clock.tick(2 * kMs);
    task.step_done(rig.now(), 2 * kMs);
    rig.step();
    REQUIRE(task.lease().kind == FREERIDE_LEASE_BUBBLE);
    REQUIRE(task.lease().deadline_ns > static_cast<uint64_t>(rig.now()));
    task.start(rig.now());
  }
  CHECK(task.lease().deadline_ns > static_cast<uint64_t>(rig.now() + 70 * kMs));
  rig.rank.end_phase(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  // The step under way ends after it: that is what giving back takes.
  rig.clock.tick(2 * kMs);
  task.step_done(rig.now(), 2 * kMs);
  task.pause(rig.now());
  rig.step();
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].wait == FREERIDE_PHASE_WAIT(0));
  CHECK(ends[0].leased);
  CHECK(ends[0].harvested_ns == rig.now() - 2 * kMs - begin_ns);
  CHECK(ends[0].overrun_ns == 2 * kMs);
  CHECK_FALSE(task.killed());
}

TEST_CASE("two phases of one name in a row are two bubbles, also where nobody looked between them", "[actor]") {
  Rig rig;
  rig.add();
  rig.step();
  rig.rank.begin_phase(rig.now());
  rig.step();
  rig.clock.tick(50 * kMs);
  rig.rank.end_phase(rig.now());
  rig.clock.tick(kMs);
  rig.rank.begin_phase(rig.now());
  rig.step();
  rig.clock.tick(50 * kMs);
  rig.rank.end_phase(rig.now());
  rig.step();
  rig.step();
  const auto ends = rig.drain(ActEvent::Kind::kBubbleEnd);
  REQUIRE(ends.size() == 2);
  for (const ActEvent& end : ends) CHECK(end.end_ns - end.begin_ns == 50 * kMs);
}

TEST_CASE("a page that lies about its phases opens no lease that it could not open otherwise", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  auto& page = rig.rank.page();
  const auto none = [&] {
    rig.step();
    return task.lease().kind == FREERIDE_LEASE_NONE;
  };
  page.idle_begun = FREERIDE_PHASE(5, FREERIDE_MAX_PHASES);  // no name
  page.idle_begin_ns = static_cast<uint64_t>(rig.now());
  CHECK(none());
  page.idle_begun = FREERIDE_PHASE(5, 0);
  page.idle_ended = 5;
  CHECK(none());
  page.idle_ended = ~uint64_t{0};
  CHECK(none());
  page.idle_ended = 0;
  page.idle_begin_ns = static_cast<uint64_t>(rig.now() + kNsPerSec);  // in the future
  CHECK(none());
  page.idle_begin_ns = 0;
  CHECK(none());
  page.idle_begin_ns = static_cast<uint64_t>(rig.now());
  page.idle_expected_ns = ~uint64_t{0};
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_BUBBLE);
  CHECK(task.lease().deadline_ns <= static_cast<uint64_t>(rig.now() + rig.config.lease.longest_ns));
  page.hook_state = FREERIDE_HOOK_DISABLED;
  CHECK(none());
}

TEST_CASE("a start waits for the next phase of a training that has long ones", "[actor]") {
  Rig rig;
  auto& page = rig.rank.page();
  page.phases[0].learned.low_ns = 5 * kNsPerSec;
  page.phases[0].apart_ns = 8 * kNsPerSec;
  rig.rank.begin_phase(rig.now());
  rig.step();
  rig.clock.tick(5 * kNsPerSec);
  rig.rank.end_phase(rig.now());
  rig.step();
  FakeTask& task = rig.add(false);
  task.created();
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(8 * kNsPerSec);
  rig.rank.begin_phase(rig.now());
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_INIT);
}

TEST_CASE("short phases do not put off a start that waits for a long one", "[actor]") {
  Rig rig;
  auto& page = rig.rank.page();
  page.phases[0].learned.low_ns = 5 * kNsPerSec;
  page.phases[0].apart_ns = 8 * kNsPerSec;
  page.phases[1].learned.low_ns = 5 * kMs;
  rig.rank.begin_phase(rig.now(), 0);
  rig.step();
  rig.clock.tick(5 * kNsPerSec);
  rig.rank.end_phase(rig.now());
  rig.step();
  FakeTask& task = rig.add(false);
  task.created();
  // The long one does not come any more.
  for (int i = 0; i < 17; ++i) {
    CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
    rig.rank.begin_phase(rig.now(), 1);
    rig.step();
    rig.clock.tick(5 * kMs);
    rig.rank.end_phase(rig.now());
    rig.step();
    rig.clock.tick(kNsPerSec);
  }
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_INIT);
}

TEST_CASE("after a phase, too, a GPU's mark counts from when the hook has seen it", "[actor]") {
  Rig rig;
  FakeTask& task = rig.add();
  rig.rank.learn(1, 10 * kMs, 10 * kMs, 10 * kMs);
  rig.rank.learn(2, 10 * kNsPerSec, 10 * kNsPerSec, 10 * kNsPerSec);
  rig.rank.begin(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  rig.rank.end(rig.now());
  rig.step();
  rig.rank.begin_phase(rig.now());
  rig.step();
  rig.clock.tick(kMs);
  rig.rank.end_phase(rig.now());
  rig.step();
  auto& page = rig.rank.page();
  page.state_word = FREERIDE_STATE(0, 2);  // the GPU's; when it began is not on the page so far
  rig.step();
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);
  rig.clock.tick(kMs);
  page.begin_ns = static_cast<uint64_t>(rig.now());
  rig.step();
  CHECK(task.lease().deadline_ns == page.begin_ns + 10 * kNsPerSec);
}
