// What a manager of many GPUs may keep and how much it does at a time: counted, not timed.
#include <set>

#include "job.hpp"
#include "limits.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

// A world in which everything that the core says of a task takes a while.
struct Slow final : Outside {
  explicit Slow(FakeClock& its_clock) : clock(its_clock) {}
  void answer(Ticket, const Result<Reply>& reply, const std::string&) override { last = reply; }
  Result<std::string> send(const std::string&, const Order& order) override {
    if (const auto* create = std::get_if<bus::CreateTask>(&order)) created.push_back(create->task);
    return "order-" + std::to_string(++count);
  }
  void publish(const bus::TaskState&) override { clock.tick(pause_ns); }
  void publish(const bus::WorkerState&) override {}
  void publish(const bus::JobMeasures&) override {}
  void publish(const bus::TrainingPlan&) override {}
  void publish(const bus::BatchState&) override {}

  FakeClock& clock;
  int64_t pause_ns = 0;
  Result<Reply> last = Reply(bus::Ack{});
  std::vector<std::string> created;
  int count = 0;
};

bus::TrainingIteration iteration_of(uint32_t rank, uint64_t number, int64_t now_ns) {
  bus::TrainingIteration one;
  one.job = "gpt";
  one.rank = rank;
  one.stage = rank % 8;
  one.iteration = number;
  one.begin_ns = now_ns - kNsPerSec;
  one.end_ns = now_ns;
  return one;
}

}  // namespace

TEST_CASE("limits follow from the number of workers, and are never less than they were") {
  CHECK(Limits{1024}.live_tasks() == 10'000);
  CHECK(Limits{1024}.ranks_of_job() == 4096);
  CHECK(Limits{1024}.kept_topics() == 4096);
  CHECK(Limits{1024}.answers() == 8192);
  CHECK(Limits{16}.answers() == 8192);
  CHECK(Limits{10'000}.live_tasks() == 20'000);
  CHECK(Limits{10'000}.ranks_of_job() == 10'000);
  CHECK(Limits{10'000}.answers() == 80'000);
}

TEST_CASE("one worker more than the limit is refused with what to do, and known ones may come again") {
  House house([](CoreConfig& config) { config.limits.workers = 2; });
  FakeWorker a("h:a"), b("h:b"), c("h:c");
  house.join(a);
  house.join(b);
  bus::RegisterWorker hello;
  hello.worker = c.name;
  hello.incarnation = "first";
  house.core->register_worker(++house.tickets, "peer-c", hello);
  const auto refused = house.answer_of(house.tickets);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kExhausted);
  CHECK(contains(refused.error().text(), "--max-workers"));
  house.join(a);
  house.report(b);
}

TEST_CASE("a job has no more ranks than its limit") {
  JobConfig config;
  config.most_ranks = 4;
  Job job("gpt", 1, config);
  for (uint32_t rank = 0; rank < 8; ++rank) job.add_iteration(iteration_of(rank, 1, 2 * kNsPerSec), 2 * kNsPerSec);
  CHECK(job.measures().stage_bubble_share_pct.size() == 4);
}

TEST_CASE("that all ranks have told of an iteration is known after a few looks at each") {
  constexpr uint32_t kRanks = 2000;
  constexpr uint64_t kIterations = 5;
  Job job("gpt", 1, JobConfig{});
  int64_t now_ns = 1000 * kNsPerSec;
  for (uint64_t number = 1; number <= kIterations; ++number) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) job.add_iteration(iteration_of(rank, number, now_ns), now_ns);
    now_ns += kNsPerSec;
  }
  CHECK(job.measures().iterations == kIterations);
  CHECK(job.rank_looks() <= 6 * kRanks * kIterations);
}

TEST_CASE("a long queue is placed in slices, each task once, and the manager is free in between") {
  constexpr int kTasks = 40;
  TempDir dir;
  FakeClock clock{1000 * kNsPerSec};
  Slow out(clock);
  CoreConfig config;
  config.paths.state_dir = dir.path / "state";
  config.paths.run_dir = dir.path / "run";
  auto store = StateStore::open(config.paths.database());
  REQUIRE(store.ok());
  auto started = Core::start(config, std::move(*store), out, clock, [&] { return clock.now_ns() / kNsPerMs; });
  REQUIRE(started.ok());
  Core& core = **started;
  for (int n = 0; n < kTasks; ++n) {
    bus::Load load = load_of("t-" + std::to_string(n));
    load.memory_bytes = int64_t{1} << 20;
    load.no_profile = true;
    core.load(static_cast<Ticket>(n), "request-" + std::to_string(n), load, plugin_bytes());
    REQUIRE(out.last.ok());
  }
  CHECK(out.created.empty());
  out.pause_ns = 5 * kNsPerMs;
  bus::RegisterWorker hello;
  hello.worker = "h:a";
  hello.incarnation = "first";
  hello.number = 1;
  hello.memory_bytes = hello.usable_bytes = int64_t{8} << 30;
  hello.ranks = FakeWorker("h:a", 0).ranks();
  core.register_worker(1000, "peer", hello);
  CHECK(out.created.size() <= 6);
  int slices = 1;
  for (; out.created.size() < kTasks && slices < kTasks; ++slices) {
    const size_t before = out.created.size();
    core.go_on();
    CHECK(out.created.size() == before);  // it rests
    clock.tick(std::max<int64_t>(0, core.next_slice_ns() - clock.now_ns()));
    core.go_on();
    CHECK(out.created.size() - before <= 6);
  }
  CHECK(slices >= 8);
  CHECK(std::set<std::string>(out.created.begin(), out.created.end()).size() == kTasks);
  CHECK(out.created.size() == kTasks);
}

TEST_CASE("what waits for a time is looked at when that has come, and not with every report before") {
  House house;
  FakeWorker worker("h:a", 0);
  house.join(worker);
  bus::Load load = load_of("one");
  load.memory_bytes = int64_t{1} << 20;
  load.no_profile = true;
  REQUIRE(house.load(load).ok());
  const auto sent = house.out.take<bus::CreateTask>();
  REQUIRE(sent.size() == 1);
  house.acknowledge(sent[0].first, Error{Code::kUnavailable, "not now", {}});
  house.report(worker);
  CHECK(house.out.take<bus::CreateTask>().empty());
  CHECK(house.core->next_slice_ns() > house.clock.now_ns());
  house.clock.tick(5 * kNsPerSec);
  house.core->go_on();
  CHECK(house.out.take<bus::CreateTask>().size() == 1);
}

TEST_CASE("placing looks at all devices once, then at those alone of which there is news") {
  constexpr int kWorkers = 50;
  House house;
  std::vector<FakeWorker> workers;
  for (int n = 0; n < kWorkers; ++n) workers.emplace_back("h:" + std::to_string(n), n % 4);
  for (auto& worker : workers) house.join(worker);
  const auto load = [&](const std::string& name, int64_t bytes = int64_t{1} << 20) {
    bus::Load wish = load_of(name);
    wish.memory_bytes = bytes;
    wish.no_profile = true;
    REQUIRE(house.load(wish).ok());
  };
  load("first");
  CHECK(house.core->device_looks() == kWorkers);
  for (int n = 0; n < kWorkers; ++n) {
    house.report(workers[static_cast<size_t>(n)]);
    load("t-" + std::to_string(n));
  }
  CHECK(house.core->device_looks() <= 3 * kWorkers);
  CHECK(house.out.take<bus::CreateTask>().size() == kWorkers + 1);

  // Of the one that is freest by far the report says that somebody else has taken it.
  FakeWorker large("h:large", 0);
  large.memory_bytes = int64_t{64} << 30;
  house.join(large);
  load("there", int64_t{16} << 30);
  auto sent = house.out.take<bus::CreateTask>();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].first.peer == "peer-h:large");
  auto report = house.report_of(large);
  report.usable_bytes = int64_t{1} << 30;
  REQUIRE(house.send(large, report).ok());
  load("not-there", int64_t{16} << 30);
  CHECK(house.out.take<bus::CreateTask>().empty());
  CHECK(house.state("not-there") == "SUBMITTED");

  // Memory that is free again is given, and none on a device that is drained.
  report.usable_bytes = large.memory_bytes;
  REQUIRE(house.send(large, report).ok());
  house.core->tick();
  CHECK(house.out.take<bus::CreateTask>().size() == 1);
  house.core->drain(++house.tickets, {"h:large", false});
  load("drained", int64_t{16} << 30);
  CHECK(house.out.take<bus::CreateTask>().empty());
  house.core->uncordon(++house.tickets, "h:large");
  CHECK(house.out.take<bus::CreateTask>().size() == 1);
}

TEST_CASE("loads that come together are made together, answered when they are on the disk, and refused one by one") {
  House house;
  FakeWorker worker("h:a", 0);
  house.join(worker);
  const auto known = house.load(load_of("first"));
  REQUIRE(known.ok());
  const auto later = [&](const std::string& name, const std::string& id) {
    bus::Load load = load_of(name);
    load.sha256 = known->load.sha256;
    house.core->load_later(++house.tickets, id, load);
    return house.tickets;
  };
  const Ticket b = later("b", "id-b"), again = later("other", "id-b"), bad = later(".bad", "id-bad"),
               c = later("c", "id-c");
  CHECK(house.out.answers.count(b) == 0);
  house.core->load_waiting();
  REQUIRE(house.task_of(b).ok());
  CHECK(house.task_of(again)->state.task == "b");  // one request makes one task
  CHECK(house.task_of(bad).error().code == Code::kInvalidArgument);
  CHECK(house.task_of(c)->state.task == "c");
  house.core->load_waiting();
  CHECK(house.tasks().size() == 3);
  house.restart(false);
  CHECK(house.tasks().size() == 3);
  int more = 0;
  for (; !house.core->enough_waiting(); ++more) later("t-" + std::to_string(more), "id-" + std::to_string(more));
  CHECK(more <= 64);  // it is not known yet how long they take
  house.core->load_waiting();
  CHECK_FALSE(house.core->enough_waiting());
  CHECK(house.tasks().size() == static_cast<size_t>(3 + more));
}
