// The probe's acting side, on the actor with fake pages: the test plays the process that probes.
#include "acting/prober.hpp"

#include <catch2/catch.hpp>

#include "acting/actor.hpp"
#include "acting/fake_pages_test_support.hpp"
#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::FakeProcesses;
using freeride::worker::testing::FakeRank;
using freeride::worker::testing::FakeTask;

namespace {

constexpr int64_t kMs = kNsPerMs;

struct Rig {
  EventRing events;
  FakeProcesses processes;
  ActorConfig config = [] {
    ActorConfig c;
    c.task.grace_ns = 10 * kMs;
    c.task.hang_ns = 1000 * kMs;
    c.task.by_cpu_clock = false;
    c.task.stops = true;
    c.probe.one_in = c.probe.one_in_holdout = 1;
    return c;
  }();
  Actor actor{config, processes, events};
  WaitSet waits;
  FakeClock clock{100 * kNsPerSec};
  FakeRank rank;
  std::vector<std::unique_ptr<FakeTask>> tasks;
  std::shared_ptr<ProbeMapping> mapping{std::move(ProbeMapping::create(kMs / 10).value())};
  uint32_t wait = 0;

  Rig() {
    for (uint32_t w = 1; w < 30; ++w) rank.learn(w, 20 * kMs, 30 * kMs, 40 * kMs);
    actor.add_rank(rank.source(1));
    mapping->page().ready = 1;
    actor.set_probe(mapping);
  }
  int64_t now() const { return clock.now_ns(); }
  ProbePage& page() { return mapping->page(); }
  ProbeCounts& counts() { return *config.probe_counts; }
  void step() {
    waits.clear();
    actor.step(now(), waits);
  }
  FakeTask& add(uint64_t content) {
    const uint64_t id = tasks.size() + 1;
    tasks.push_back(std::make_unique<FakeTask>(id, processes));
    tasks.back()->source()->content = content;
    actor.add_task(tasks.back()->source());
    actor.set_process(id, tasks.back()->pid(), nullptr);
    tasks.back()->initialised(now());
    step();
    return *tasks.back();
  }
  void remove(FakeTask& task) {
    actor.remove_task(task.source()->id, now());
    processes.stopped.erase(task.pid());
  }
  void begin() {
    if (++wait == 25) {
      rank.finish_iteration(now());
      wait = 1;
    }
    rank.begin(now());
    step();
  }
  // Up to where the probe is asked: nobody has a lease any more, and whoever executed pauses. Returns whether it was.
  bool asked() {
    const uint32_t before = page().asked;
    const int64_t end_ns = now() + 20 * kMs;
    for (auto& task : tasks) {
      if (task->lease().kind == FREERIDE_LEASE_BUBBLE) task->start(now());
    }
    clock.tick(17 * kMs + kMs / 2);
    step();
    for (auto& task : tasks) {
      if (task->answer().state != FREERIDE_STATE_RUNNING) continue;
      task->step_done(now(), 0);
      task->pause(now());
    }
    step();
    CHECK(now() < end_ns);
    return page().asked != before;
  }
  void answer(int64_t waited_ns, int64_t gap_ns = 0) {
    page().launched_ns = now();
    page().launched = page().asked;
    page().began_ns = page().began_by_ns = now() + waited_ns;
    page().beats.began = 1;
    page().ended_ns = page().began_ns + kMs / 10;
    page().gap_ns = gap_ns;
    clock.tick(waited_ns + kMs / 5);
    page().answered = page().asked;
    step();
  }
  void end() {
    rank.end(now());
    step();
    clock.tick(10 * kMs);
    step();
  }
  void bubble(int64_t waited_ns) {
    begin();
    REQUIRE(asked());
    answer(waited_ns);
    end();
  }
};

}  // namespace

TEST_CASE("a probed bubble's lease ends early, and the probe is asked when all are stopped", "[probe]") {
  Rig rig;
  FakeTask& task = rig.add(7);
  rig.begin();
  CHECK(task.lease().deadline_ns == static_cast<uint64_t>(rig.now() + 20 * kMs - rig.config.probe.room_ns));
  CHECK(rig.asked());
  CHECK(rig.processes.stopped.count(task.pid()) == 1);
  rig.answer(kMs / 10);
  CHECK(rig.counts().probes == 1);
  CHECK(rig.counts().findings == 0);
  CHECK(task.lease().kind == FREERIDE_LEASE_NONE);  // what is left is not worth a lease
}

TEST_CASE("findings in a row make the task go: first to see, then for good", "[probe]") {
  Rig rig;
  FakeTask* task = &rig.add(7);
  rig.bubble(2 * kMs);
  rig.bubble(2 * kMs);
  CHECK_FALSE(task->killed());
  rig.bubble(2 * kMs);
  CHECK(task->killed());
  CHECK(task->source()->killed_verdict.kind == policy::VerdictKind::kLost);
  CHECK(task->source()->killed_verdict.cause == policy::Cause::kProbe);
  CHECK(rig.actor.take_kills().size() == 1);
  rig.remove(*task);
  task = &rig.add(7);
  // What it has left is not looked at, then training alone is, and nobody gets a lease.
  rig.clock.tick(policy::ProbeJudge::kGoneNs);
  for (uint32_t i = 0; i < policy::ProbeJudge::kControls; ++i) {
    CHECK(task->lease().kind == FREERIDE_LEASE_NONE);
    rig.bubble(0);
  }
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(task->killed());
    rig.bubble(2 * kMs);
  }
  CHECK(task->killed());
  CHECK(task->source()->killed_verdict.kind == policy::VerdictKind::kOverran);
  CHECK(task->source()->killed_verdict.message.find("for 2") != std::string::npos);
}

TEST_CASE("a probe that has not begun by the bubble's end is a finding, one whose process is silent is not",
          "[probe]") {
  Rig rig;
  rig.add(7);
  rig.begin();
  REQUIRE(rig.asked());
  rig.page().launched_ns = rig.now();
  rig.page().launched = rig.page().asked;
  rig.clock.tick(3 * kMs);
  rig.step();
  CHECK(rig.counts().findings == 1);
  rig.end();
  rig.begin();
  REQUIRE(rig.asked());
  rig.clock.tick(3 * kMs);  // nothing was launched
  rig.step();
  CHECK(rig.counts().findings == 1);
  CHECK(rig.counts().unknown == 1);
  rig.end();
  rig.begin();
  REQUIRE(rig.asked());
  rig.page().launched_ns = rig.now();
  rig.page().launched = rig.page().asked;
  rig.page().beats.began = 1;  // the kernel has begun, and nobody says when
  rig.clock.tick(3 * kMs);
  rig.step();
  CHECK(rig.counts().findings == 1);
  CHECK(rig.counts().unknown == 2);
}

TEST_CASE("a bubble that ends early says nothing of side tasks", "[probe]") {
  Rig rig;
  FakeTask& task = rig.add(7);
  for (int i = 0; i < 10; ++i) {
    rig.begin();
    REQUIRE(rig.asked());
    rig.page().launched_ns = rig.now();
    rig.page().launched = rig.page().asked;
    rig.clock.tick(kMs + kMs / 2);  // training has posted by now
    rig.end();
  }
  CHECK(rig.counts().unknown == 10);
  CHECK(rig.counts().findings == 0);
  CHECK_FALSE(task.killed());
}

TEST_CASE("nobody is asked while a task has not paused, or initialises", "[probe]") {
  Rig rig;
  FakeTask& task = rig.add(7);
  rig.begin();
  task.start(rig.now());
  rig.clock.tick(17 * kMs + kMs / 2);
  rig.step();
  rig.clock.tick(kMs);
  rig.step();
  CHECK(rig.page().asked == 0);
  task.pause(rig.now());
  rig.end();
  FakeTask& next = rig.add(8);
  next.created();
  rig.step();
  REQUIRE(next.lease().kind == FREERIDE_LEASE_INIT);
  rig.begin();
  CHECK_FALSE(rig.asked());
}

TEST_CASE("held-out bubbles are probed without a lease, and counted apart", "[probe]") {
  Rig rig;
  rig.add(7);
  auto plans = std::make_shared<PlanSet>();
  policy::HoldoutPlan plan;
  plan.job = "gpt";
  plan.block_iterations = 1;
  plan.share_pct = 100;
  plans->merge({plan});
  rig.actor.set_plans(plans);
  rig.bubble(0);
  rig.bubble(2 * kMs);
  CHECK(rig.counts().holdout_probes == 2);
  CHECK(rig.counts().holdout_findings == 1);
}

TEST_CASE("without a probe, or where it is not wanted, leases are as ever", "[probe]") {
  Rig rig;
  FakeTask& task = rig.add(7);
  rig.actor.set_probe(nullptr);
  rig.begin();
  CHECK(task.lease().deadline_ns == static_cast<uint64_t>(rig.now() + 20 * kMs));
  CHECK_FALSE(rig.asked());
}

TEST_CASE("where processes cannot be stopped nobody is asked, and nobody is accused", "[probe]") {
  Rig rig;
  rig.processes.can_stop = false;
  rig.add(7);
  rig.begin();
  CHECK_FALSE(rig.asked());
}
