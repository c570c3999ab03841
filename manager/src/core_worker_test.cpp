// Workers that die, come back, lie and flood.
#include "core.hpp"
#include "freeride/base/sha256.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {
struct Running : House {
  Running() {
    join(worker);
    REQUIRE(load(load_of("a", 0)).ok());
    settle(worker);
    REQUIRE(state("a") == "PAUSED");
  }
  FakeWorker worker{"w", 0};
};
}  // namespace

TEST_CASE("a silent worker is lost; its task waits and restarts when it is back") {
  Running house;
  house.pass(4);
  CHECK(house.state("a") == "PAUSED");
  house.pass(2);
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.out.workers.back().state == "lost");
  FakeWorker again("w", 0);
  again.incarnation = "second";
  house.join(again);
  house.settle(again);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").restarts == 1);
}

TEST_CASE("another worker of the stage takes the task of a lost one") {
  Running house;
  FakeWorker other("x", 0);
  house.join(other);
  house.pass(6, {&other});
  house.settle(other);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").state.worker == "x");
  // The lost one wakes up and still has it: it is told to stop its copy.
  const auto told = house.renewal(house.worker);
  REQUIRE(told.orders.size() == 1);
  CHECK(told.orders[0].order == "stop");
  CHECK(told.orders[0].epoch > house.worker.tasks["a"].epoch);
  CHECK(house.task("a").state.worker == "x");
}

TEST_CASE("a worker that was only unreachable keeps its task, and the restart is not counted") {
  Running house;
  house.pass(6);
  CHECK(house.state("a") == "SUBMITTED");
  house.report(house.worker);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").restarts == 0);
  CHECK(house.task("a").state.worker == "w");
}

TEST_CASE("a new process under a worker's name has none of the old one's tasks") {
  Running house;
  FakeWorker again("w", 0);
  again.incarnation = "second";
  auto plan = house.join(again);
  CHECK(plan.orders.empty());
  CHECK(house.task("a").restarts == 1);
  house.settle(again);
  CHECK(house.state("a") == "PAUSED");
  auto old = house.send(house.worker,
                        house.report_of(house.worker));  // the old process, should it still live, is a stranger now
  CHECK(old.error().code == Code::kNotFound);
}

TEST_CASE("a worker that keeps dying does not take a task with it for ever") {
  Running house;
  for (int n = 0; n < 4; ++n) {
    FakeWorker again("w", 0);
    again.incarnation = "process " + std::to_string(n);
    house.join(again);
    house.pass(21, {&again});
    house.settle(again);
  }
  CHECK(house.verdict("a").kind == "lost");
  CHECK(house.verdict("a").cause == "worker");
  CHECK(contains(house.verdict("a").reason, "restarted 3 times"));
}

TEST_CASE("what fails to start again and again waits longer each time, so that a full disk does not cost it its life") {
  Running house;
  const auto lose = [&] {
    auto report = house.report_of(house.worker);
    report.tasks[0].state = "STOPPED";
    report.tasks[0].verdict.kind = "lost";
    report.tasks[0].verdict.reason = "No space left on device";
    house.worker.tasks.erase("a");
    CHECK(house.send(house.worker, report).ok());
  };
  const auto waits = [&](int seconds) {
    house.settle(house.worker);
    CHECK(house.state("a") == "SUBMITTED");
    CHECK(contains(house.reason("a"), "No space left on device; it is tried again after " + std::to_string(seconds)));
    house.pass(seconds - 1, {&house.worker});
    house.settle(house.worker);
    CHECK(house.state("a") == "SUBMITTED");
    house.pass(2, {&house.worker});
    house.settle(house.worker);
    CHECK(house.state("a") == "PAUSED");
  };
  lose();
  house.settle(house.worker);
  CHECK(house.state("a") == "PAUSED");
  lose();
  waits(5);
  lose();
  waits(20);
  lose();
  CHECK(house.verdict("a").kind == "lost");
}

TEST_CASE("a worker that is killed six times in an hour does not cost an innocent task its life") {
  Running house;
  for (int n = 0; n < 6; ++n) {
    FakeWorker again("w", 0);
    again.incarnation = "process " + std::to_string(n);
    house.join(again);
    house.settle(again);
    REQUIRE(house.state("a") == "PAUSED");
    house.pass(601, {&again});
  }
  CHECK(house.task("a").restarts == 6);
}

TEST_CASE("a task that is lost before it says that it was created is counted, too") {
  Running house;
  for (int n = 0; n < 4; ++n) {
    FakeWorker again("w", 0);
    again.incarnation = "process " + std::to_string(n);
    house.join(again);
    house.pass(21, {&again});
    house.settle(again);
    if (house.state("a") == "STOPPED") break;
    again.tasks["a"].state = "SUBMITTED";  // it executes in a constructor
    house.report(again);
  }
  CHECK(house.verdict("a").kind == "lost");
  CHECK(house.task("a").restarts == 3);
}

TEST_CASE("a worker that leaves in good order costs its tasks no restart") {
  Running house;
  auto goodbye = house.report_of(house.worker);
  goodbye.leaving = true;
  goodbye.tasks[0].state = "STOPPED";
  goodbye.tasks[0].verdict.kind = "stopped";
  CHECK(house.send(house.worker, goodbye).ok());
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.task("a").restarts == 0);
  CHECK(house.out.workers.back().state == "down");
}

TEST_CASE("a task that has stopped while its worker still saves others costs no restart either") {
  Running house;
  auto report = house.report_of(house.worker);
  report.ending = true;
  report.tasks[0].state = "STOPPED";
  report.tasks[0].verdict.kind = "stopped";
  CHECK(house.send(house.worker, report).ok());
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.task("a").restarts == 0);
  CHECK(house.out.workers.back().state == "up");
}

TEST_CASE("a task that is placed on another host is told who has its saved state, and may have it") {
  House house;
  FakeWorker first("a:cpu-0", 0), second("b:cpu-0", 0), beside("b:cpu-1", 0);
  house.join(first);
  auto load = load_of("t", 0);
  load.no_profile = true;
  REQUIRE(house.load(load).ok());
  house.settle(first);
  REQUIRE(house.task("t").state.worker == "a:cpu-0");
  house.join(second);
  auto goodbye = house.report_of(first);
  goodbye.leaving = true;
  goodbye.tasks[0].state = "STOPPED";
  goodbye.tasks[0].verdict.kind = "stopped";
  REQUIRE(house.send(first, goodbye).ok());
  CHECK(house.task("t").last_worker == "a:cpu-0");
  house.restart();  // it is remembered
  house.join(second);
  std::vector<std::pair<Recorder::Sent, bus::CreateTask>> created;
  for (int n = 0; n < 10 && created.empty(); ++n) {
    house.pass(1);
    house.report(second);
    created = house.out.take<bus::CreateTask>();
  }
  REQUIRE_FALSE(created.empty());
  const auto& [sent, order] = created.back();
  CHECK(order.state_worker == "a:cpu-0");

  const auto ask = [&](const std::string& worker, uint64_t epoch) {
    house.core->fetch_state(++house.tickets, {worker, "t", epoch, 512});
  };
  // Only for who has it now.
  for (const auto& [who, epoch] : {std::pair{"b:cpu-1", order.epoch}, std::pair{"b:cpu-0", order.epoch - 1}}) {
    ask(who, epoch);
    CHECK(house.answer_of(house.tickets).error().code == Code::kPermission);
  }
  ask("b:cpu-0", order.epoch);
  CHECK(house.answer_of(house.tickets).error().code == Code::kUnavailable);  // the other one is away
  first.incarnation = "second";
  first.tasks.clear();
  house.join(first);
  ask("b:cpu-0", order.epoch);
  const auto passed_on = house.out.take<bus::GetState>();
  REQUIRE(passed_on.size() == 1);
  CHECK(passed_on[0].first.peer == "peer-a:cpu-0");
  CHECK(passed_on[0].second.instance == order.instance);
  CHECK(passed_on[0].second.offset == 512);
  bus::FileReply piece;
  piece.bytes = 1000;
  const Reply data = piece;
  house.core->worker_reply("peer-a:cpu-0", passed_on[0].first.id, {}, {}, &data, "its bytes");
  CHECK(std::get<bus::FileReply>(*house.answer_of(house.tickets)).bytes == 1000);
  CHECK(house.out.attachments[house.tickets] == "its bytes");
}

TEST_CASE("on the host that has it a saved state is not asked for, and who never had a task has none") {
  House house;
  FakeWorker first("a:cpu-0", 0), beside("a:cpu-1", 0), away("b:cpu-0", 0);
  house.join(first);
  auto load = load_of("t", 0);
  load.no_profile = true;
  REQUIRE(house.load(load).ok());
  house.settle(first);
  house.join(away);
  auto goodbye = house.report_of(first);
  goodbye.leaving = true;
  goodbye.tasks[0].state = "STOPPED";
  goodbye.tasks[0].verdict.kind = "stopped";
  REQUIRE(house.send(first, goodbye).ok());
  house.pass(2, {});
  away.begins_as = "SUBMITTED";  // it fetches the state, and has not made the task yet
  house.obey(away);
  REQUIRE(house.task("t").state.worker == "b:cpu-0");
  goodbye = house.report_of(away);
  goodbye.leaving = true;
  REQUIRE(house.send(away, goodbye).ok());
  house.join(beside);
  house.pass(10, {});
  const auto created = house.out.take<bus::CreateTask>();
  REQUIRE_FALSE(created.empty());
  CHECK(created.back().first.peer == "peer-a:cpu-1");
  CHECK(created.back().second.state_worker.empty());
  CHECK(house.task("t").last_worker == "a:cpu-0");
}

TEST_CASE("work done before a restart stays counted") {
  Running house;
  house.worker.tasks["a"].counters.steps = 100;
  house.worker.tasks["a"].counters.harvested_ns = 5000;
  house.report(house.worker);
  FakeWorker again("w", 0);
  again.incarnation = "second";
  house.join(again);
  house.settle(again);
  again.tasks["a"].counters.steps = 10;
  again.tasks["a"].counters.harvested_ns = 500;
  house.report(again);
  CHECK(house.task("a").state.counters.steps == 110);
  CHECK(house.task("a").state.counters.harvested_ns == 5500);
}

TEST_CASE("a task that ends by itself or was killed has its worker's verdict") {
  Running house;
  for (const char* kind : {"crashed", "overran", "out_of_memory", "evicted", "failed", "nonsense", ""}) {
    CAPTURE(kind);
    const std::string name = std::string("t") + (kind[0] != 0 ? kind : "empty");
    REQUIRE(house.load(load_of(name, 0)).ok());
    house.settle(house.worker);
    House::end(house.worker, name, kind);
    house.report(house.worker);
    CHECK(house.state(name) == "STOPPED");
    CHECK(house.verdict(name).kind == (std::string(kind) == "nonsense" || kind[0] == 0 ? "failed" : kind));
    house.worker.tasks.erase(name);
  }
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("what an earlier task of the same name is reported to be is not taken for the new one") {
  Running house;
  REQUIRE(house.stop("a").ok());
  house.obey(house.worker);
  CHECK(house.state("a") == "STOPPED");
  REQUIRE(house.load(load_of("a", 0)).ok());
  house.report(house.worker);  // still names the old one, STOPPED
  CHECK(house.state("a") == "SUBMITTED");
  auto create = house.out.take<bus::CreateTask>();
  REQUIRE(create.size() == 1);
  house.acknowledge(create[0].first, Error{Code::kAlreadyExists, "a is here", {}});
  house.report(house.worker);
  CHECK(house.state("a") == "SUBMITTED");
  house.pass(4, {&house.worker});
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("a task that its worker no longer names is queued again") {
  Running house;
  house.worker.tasks.clear();
  house.pass(7, {&house.worker});
  CHECK(house.task("a").restarts == 1);
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("a manager that cannot keep up with what it is told declares nobody lost, and afterwards who is silent") {
  Running house;
  for (int n = 0; n < 20; ++n) {
    house.clock.tick(kNsPerSec);
    house.core->tick(true);
  }
  CHECK(house.state("a") == "PAUSED");
  house.pass(3);
  CHECK(house.state("a") == "PAUSED");
  house.pass(4);
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.out.workers.back().state == "lost");
}

TEST_CASE("a manager that cannot keep up with what it is told sends no order again, since its answer may still wait") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  bus::Load load = load_of("a");
  load.memory_bytes = int64_t{1} << 20;
  load.no_profile = true;
  REQUIRE(house.load(load).ok());
  const auto sent = house.out.take<bus::CreateTask>();
  REQUIRE(sent.size() == 1);
  for (int n = 0; n < 20; ++n) {
    house.clock.tick(kNsPerSec);
    house.report(worker);  // as it was long ago
    house.core->tick(true);
  }
  CHECK(house.out.take<bus::CreateTask>().empty());
  CHECK(house.task("a").state.worker == "w");
  SECTION("the answer was there, and counts") {
    house.acknowledge(sent[0].first);
    house.pass(3);
    CHECK(house.out.take<bus::CreateTask>().empty());
  }
  SECTION("there was none: as always once it has caught up") {
    bool queued = false;
    for (int n = 0; n < 10 && !queued; ++n) {
      house.clock.tick(kNsPerSec);
      house.report(worker);
      house.core->tick();
      queued = house.task("a").state.worker.empty();
    }
    CHECK(queued);
    CHECK(house.out.take<bus::CreateTask>().size() == 3);
  }
}

TEST_CASE("a manager that cannot keep up lets nobody wait for a log that does not come") {
  Running house;
  house.core->show(++house.tickets, "a");
  CHECK(house.out.answers.count(house.tickets) == 0);
  for (int n = 0; n < 3; ++n) {
    house.clock.tick(kNsPerSec);
    house.core->tick(true);
  }
  REQUIRE(house.out.answers.count(house.tickets) == 1);
  CHECK(contains(house.task_of(house.tickets)->log_tail, "did not answer"));
}

TEST_CASE("a manager that was held up declares nobody lost") {
  Running house;
  house.clock.tick(60 * kNsPerSec);
  house.core->tick();
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("a profile is repeated when its worker is lost, and tasks wait for it meanwhile") {
  House house;
  FakeWorker worker("w", 0), other("x", 1);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  auto first = house.out.take<bus::CreateTask>();
  REQUIRE(first.size() == 1);
  house.acknowledge(first[0].first);
  house.pass(6);
  CHECK(house.state("a") == "SUBMITTED");
  house.join(other);
  house.pass(4, {&other});
  house.settle(other);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").state.worker == "x");
}

TEST_CASE("reports from strangers and lies are turned away or bounded") {
  Running house;
  FakeWorker stranger("nobody", 0);
  CHECK(house.send(stranger, house.report_of(stranger)).error().code == Code::kNotFound);
  bus::RegisterWorker unnamed;
  house.core->register_worker(++house.tickets, "p", unnamed);
  CHECK_FALSE(house.answer_of(house.tickets).ok());

  auto report = house.report_of(house.worker);
  report.usable_bytes = INT64_MIN;
  report.tasks[0].counters.steps = UINT64_MAX;
  report.tasks[0].counters.step_ns = INT64_MIN;
  report.tasks[0].counters.harvested_ns = INT64_MAX;
  for (int n = 0; n < 100; ++n) report.tasks[0].counters.metrics["m" + std::to_string(n)] = n;
  report.tasks[0].state = "FLYING";
  for (int n = 0; n < 2000; ++n) {
    bus::TaskReport ghost;
    ghost.task = "ghost" + std::to_string(n);
    ghost.state = "RUNNING";
    report.tasks.push_back(ghost);
    bus::TrainingState rank;
    rank.job = "job" + std::to_string(n);
    rank.state = "active";
    rank.stage = rank.stages = UINT32_MAX;
    report.ranks.push_back(rank);
    bus::PluginState plugin;
    plugin.name = "p" + std::to_string(n) + ".so";
    plugin.state = "added";
    report.plugins.push_back(plugin);
  }
  bus::TrainingIteration iteration;
  iteration.job = "gpt";
  iteration.begin_ns = INT64_MIN;
  iteration.end_ns = INT64_MAX;
  report.iterations.push_back(iteration);
  bus::BubbleTotals totals;
  totals.job = "gpt";
  totals.stage = UINT32_MAX;
  totals.bubble_ns = totals.harvested_ns = INT64_MIN;
  totals.overruns_ns.assign(100'000, INT64_MIN);
  report.bubbles.push_back(totals);
  CHECK(house.send(house.worker, report).ok());
  house.pass(2, {&house.worker});
  CHECK(house.tasks().size() == 1);
  CHECK(house.task("a").state.counters.metrics.size() <= 8);
  CHECK(house.task("a").state.counters.step_ns >= 0);
  house.core->status(++house.tickets);
  auto status = std::get<bus::StatusReply>(*house.answer_of(house.tickets));
  CHECK(status.jobs.size() <= 2 * Jobs::kMax);
}

TEST_CASE("the holdout plan reaches every worker of the job, for an iteration that is still to come") {
  House house;
  FakeWorker first("w0", 0), second("w1", 1), elsewhere("w2");
  house.join(first);
  house.join(second);
  house.join(elsewhere);
  uint64_t at = 0;
  for (int n = 0; n < 4; ++n) {
    house.clock.tick(kNsPerSec);
    for (FakeWorker* worker : {&first, &second}) {
      auto report = house.report_of(*worker);
      for (uint64_t i = 0; i < 10; ++i) {
        bus::TrainingIteration iteration;
        iteration.job = "gpt";
        iteration.rank = iteration.stage = static_cast<uint32_t>(worker->stage);
        iteration.iteration = at + i;
        iteration.begin_ns = static_cast<int64_t>(at + i) * 100 * kNsPerMs;
        iteration.end_ns = iteration.begin_ns + 100 * kNsPerMs;
        report.iterations.push_back(iteration);
      }
      REQUIRE(house.send(*worker, report).ok());
    }
    house.report(elsewhere);
    at += 10;
    house.core->tick();
  }
  std::map<std::string, bus::HoldoutPlan> plans;
  for (auto& [sent, plan] : house.out.take<bus::WorkerPlan>()) {
    if (!plan.holdout.empty()) plans[sent.peer] = plan.holdout.back();
  }
  REQUIRE(plans.size() == 2);
  const auto& plan = plans.at("peer-w0");
  CHECK(plan.block_iterations == 30);  // 3 s of 100 ms
  CHECK(plan.share_pct == 10);
  CHECK(plan.from_iteration > 10);
  CHECK(plan.seed == plans.at("peer-w1").seed);
  CHECK(plan.from_iteration == plans.at("peer-w1").from_iteration);
  // Who comes later gets the same with the answer to its registration, and a restarted manager makes no other.
  house.restart();
  FakeWorker late("w3", 2);
  auto joined = house.join(late);
  REQUIRE_FALSE(joined.holdout.empty());
  CHECK(joined.holdout.back().seed == plan.seed);
  CHECK(joined.holdout.back().from_iteration == plan.from_iteration);
  // And so does who registers before the trainer has found it, as a worker does that was started anew.
  FakeWorker anew("w4");
  CHECK(house.join(anew).holdout.empty());
  house.out.take<bus::WorkerPlan>();
  anew.stage = 3;
  house.report(anew);
  house.core->tick();
  const auto sent = house.out.take<bus::WorkerPlan>();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].first.peer == "peer-w4");
  REQUIRE_FALSE(sent[0].second.holdout.empty());
  CHECK(sent[0].second.holdout.back().seed == plan.seed);
}

TEST_CASE("a plugin is handed out by its content only") {
  Running house;
  const std::string sha256 = house.task("a").state.sha256;
  house.core->fetch_plugin(++house.tickets, {sha256});
  REQUIRE(house.answer_of(house.tickets).ok());
  CHECK(house.out.attachments[house.tickets] == plugin_bytes());
  std::string joined;
  for (std::string piece = "x"; !piece.empty(); joined += piece) {
    house.core->fetch_plugin(++house.tickets, {sha256, joined.size(), 1000});
    REQUIRE(house.answer_of(house.tickets).ok());
    piece = house.out.attachments[house.tickets];
    CHECK(piece.size() <= 1000);
  }
  CHECK(joined == plugin_bytes());
  house.core->fetch_plugin(++house.tickets, {"../freeride.db", 7, 7});
  CHECK(house.answer_of(house.tickets).error().code == Code::kInvalidArgument);
  house.core->fetch_plugin(++house.tickets, {"../freeride.db"});
  CHECK(house.answer_of(house.tickets).error().code == Code::kInvalidArgument);
  house.core->fetch_plugin(++house.tickets, {std::string(64, '0')});
  CHECK(house.answer_of(house.tickets).error().code == Code::kNotFound);
}

TEST_CASE("a plugin that comes in pieces is there for the command behind them, whatever is repeated or lost") {
  House house;
  const std::string bytes = plugin_bytes(), sha256 = sha256_hex(bytes);
  const auto write = [&](const std::string& who, uint64_t offset, const std::string& piece) {
    house.core->write_plugin(++house.tickets, who, {sha256, bytes.size(), offset}, piece);
    return house.answer_of(house.tickets);
  };
  const auto there = [](const Result<Reply>& reply) { return std::get<bus::FileReply>(*reply).next; };
  const auto load = [&] {
    bus::Load wish;
    wish.plugin = "side.so";
    wish.sha256 = sha256;
    house.core->load(++house.tickets, "request", wish, {});
    return house.answer_of(house.tickets);
  };
  CHECK(there(write("ann", 0, "")) == 0);
  CHECK(there(write("ann", 0, bytes.substr(0, 1000))) == 1000);
  CHECK(there(write("ann", 0, bytes.substr(0, 1000))) == 1000);       // a repetition
  CHECK(there(write("ann", 1500, bytes.substr(1500, 100))) == 1000);  // one before it was lost
  CHECK(there(write("bob", 0, "")) == 0);                             // nobody's bytes are mixed with another's
  CHECK(load().error().code == Code::kNotFound);
  // Who is silent for a minute begins anew.
  house.pass(61);
  CHECK(there(write("ann", 1000, bytes.substr(1000))) == 0);
  CHECK(there(write("ann", 0, bytes.substr(0, 2000))) == 2000);
  const auto whole = write("ann", 2000, bytes.substr(2000));
  CHECK(there(whole) == bytes.size());
  CHECK_FALSE(std::get<bus::FileReply>(*whole).more);
  CHECK(there(write("bob", 0, "")) == bytes.size());  // what is there need not be sent
  house.pass(30);
  CHECK(load().ok());
}

TEST_CASE("pieces of what is no plugin, of another content or of too much are refused") {
  House house;
  const auto write = [&](const bus::WritePlugin& wish, const std::string& piece) {
    house.core->write_plugin(++house.tickets, "ann", wish, piece);
    return house.answer_of(house.tickets);
  };
  const std::string bytes = plugin_bytes(), other(64, 'a');
  CHECK(write({"../freeride.db", 10, 0}, "x").error().code == Code::kInvalidArgument);
  CHECK(write({other, 0, 0}, "").error().code == Code::kInvalidArgument);
  CHECK(write({other, uint64_t{1} << 40, 0}, "x").error().code == Code::kInvalidArgument);
  CHECK(write({other, 3, 0}, "four").error().code == Code::kInvalidArgument);
  CHECK(write({sha256_hex("no ELF"), 6, 0}, "no ELF").error().code == Code::kInvalidArgument);
  CHECK(contains(write({other, bytes.size(), 0}, bytes).error().message, "do not match the SHA-256"));
  for (int i = 0; i < 16; ++i) CHECK(write({std::string(62, 'b') + std::to_string(10 + i), 9, 0}, "x").ok());
  CHECK(write({std::string(62, 'c') + "00", 9, 0}, "x").error().code == Code::kExhausted);
}

TEST_CASE("what another host's drop folder has is given to who names that host, and to no worker by itself") {
  House house;
  FakeWorker here("a:cpu-0", 0), there("b:cpu-0", 0), beside("b:cpu-1", 0);
  bus::PluginState plugin, bad;
  plugin.name = "side.so";
  plugin.sha256 = std::string(64, 'b');
  plugin.state = "added";
  bad.name = "bad.so";
  bad.sha256 = std::string(64, 'c');
  bad.state = "rejected";
  beside.plugins = {plugin, bad};
  for (FakeWorker* worker : {&here, &there, &beside}) house.join(*worker);
  const auto read = [&](const std::string& host, const std::string& sha256) {
    house.core->read_plugin(++house.tickets, {host, sha256, 512});
  };
  for (const auto& [host, sha256] : {std::pair{"a", plugin.sha256}, std::pair{"", plugin.sha256},
                                     std::pair{"b:cpu-1", plugin.sha256}, std::pair{"b", bad.sha256}}) {
    read(host, sha256);
    CHECK(house.answer_of(house.tickets).error().code == Code::kNotFound);
  }
  CHECK(house.out.take<bus::GetPlugin>().empty());
  read("b", plugin.sha256);
  const auto passed_on = house.out.take<bus::GetPlugin>();
  REQUIRE(passed_on.size() == 1);
  CHECK(passed_on[0].first.peer == "peer-b:cpu-1");
  CHECK(passed_on[0].second.sha256 == plugin.sha256);
  CHECK(passed_on[0].second.offset == 512);
  bus::FileReply piece;
  piece.bytes = 1000;
  const Reply data = piece;
  house.core->worker_reply("peer-b:cpu-1", passed_on[0].first.id, {}, {}, &data, "its bytes");
  CHECK(std::get<bus::FileReply>(*house.answer_of(house.tickets)).bytes == 1000);
  CHECK(house.out.attachments[house.tickets] == "its bytes");

  house.core->fetch_plugin(++house.tickets, {plugin.sha256});
  const auto refused = house.answer_of(house.tickets);
  CHECK(refused.error().code == Code::kNotFound);
  CHECK(contains(refused.error().message, "in the drop folder of host b alone"));
  CHECK(contains(refused.error().hint, "freeride-ctl load b:side.so"));
}

TEST_CASE("two jobs of one name and two users are two; one user's many leave the others' alone") {
  House house;
  FakeWorker mine("mine", 0), hers("hers", 0);
  mine.job = "gpt";
  hers.job = "1000/gpt";
  house.join(mine);
  house.join(hers);
  house.pass(1, {&mine, &hers});
  const auto names = [&](const std::string& asked) {
    std::vector<std::string> found;
    house.core->report(++house.tickets, asked);
    const auto answer = house.answer_of(house.tickets);
    if (!answer) return found;
    for (const auto& job : std::get<bus::ReportReply>(*answer).jobs) found.push_back(job.job);
    return found;
  };
  CHECK(names("") == std::vector<std::string>{"1000/gpt", "gpt"});
  CHECK(names("gpt") == std::vector<std::string>{"gpt"});
  CHECK(names("1000/gpt") == std::vector<std::string>{"1000/gpt"});
  // A stranger whose job is never the same: the manager keeps some, and all that others have.
  FakeWorker many("many", 0);
  for (int i = 0; i < 100; ++i) {
    many.job = "1001/job-" + std::to_string(i);
    if (i == 0) house.join(many);
    for (int second = 0; second < 6; ++second) house.pass(1, {&many, &mine, &hers});
  }
  CHECK(names("").size() == 2 + Jobs::kMostOfOne);
  CHECK(names("job-99") == std::vector<std::string>{"1001/job-99"});
  CHECK(names("gpt") == std::vector<std::string>{"gpt"});
}
