// Partitions, copies, and state files from yesterday: what runs twice, what is lost.
#include "core.hpp"
#include "freeride/base/sha256.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

bus::TaskOrder order_for(const bus::WorkerPlan& plan, const std::string& task) {
  for (const auto& order : plan.orders) {
    if (order.task == task) return order;
  }
  return {};
}

std::string settled_as(const bus::WorkerPlan& plan, const std::string& task) {
  for (const auto& one : plan.settled) {
    if (one.task == task) return one.order;
  }
  return "";
}

/// One task on w, and another worker that could have it.
struct Two : House {
  explicit Two(const policy::OrderLimits& limits = {}) : House([&](CoreConfig& config) { config.orders = limits; }) {
    join(w);
    REQUIRE(load(load_of("a", 0)).ok());
    settle(w);
    REQUIRE(state("a") == "PAUSED");
    join(x);
  }
  uint64_t epoch() { return task("a").epoch; }
  FakeWorker w{"w", 0}, x{"x", 0};
};

/// A copy of the state file as it is now, and its return.
struct Backup {
  Backup(House& of, const std::string& name) : house(of), file(of.config.paths.database()), kept(of.dir.path / name) {
    house.core.reset();
    std::filesystem::copy_file(file, kept);
    house.start();
  }
  void restore() {
    house.core.reset();
    std::filesystem::copy_file(kept, file, std::filesystem::copy_options::overwrite_existing);
    for (const char* end : {"-wal", "-shm"}) std::filesystem::remove(file.string() + end);
    house.start();
  }
  House& house;
  std::filesystem::path file, kept;
};

}  // namespace

TEST_CASE("a lost worker's task is placed elsewhere only when its orders have expired, with the margin") {
  Two house;  // 15 s and 6 s, by default
  const uint64_t first = house.epoch();
  house.report(house.w);  // the last that is heard of it
  for (int second = 1; second <= 20; ++second) {
    house.pass(1, {&house.x});
    CAPTURE(second);
    CHECK(house.x.tasks.count("a") == 0);
    if (second < 5) continue;
    CHECK(house.task("a").state.why == "fenced");
    CHECK(contains(house.reason("a"), "until its orders on worker w have expired"));
  }
  house.pass(2, {&house.x});
  house.settle(house.x);
  CHECK(house.task("a").state.worker == "x");
  CHECK(house.epoch() > first);
  CHECK(house.x.tasks["a"].epoch == house.epoch());
}

TEST_CASE("what renews an order names its epoch, and the report that it rests on") {
  Two house;
  const auto plan = house.renewal(house.w);
  CHECK(plan.heard == house.w.number);
  CHECK(plan.pause_ms == 15'000);
  CHECK(plan.stop_ms == 120'000);
  CHECK(plan.holdout.empty());
  CHECK(order_for(plan, "a").order == "run");
  CHECK(order_for(plan, "a").epoch == house.w.tasks["a"].epoch);
  CHECK(house.w.tasks["a"].epoch != 0);
  CHECK_FALSE(house.w.tasks["a"].instance.empty());
  house.out.sent.clear();
  REQUIRE(house.pause("a").ok());
  const auto orders = house.out.take<bus::TaskOrder>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].second.epoch == house.epoch());
  CHECK(order_for(house.renewal(house.w), "a").order == "pause");
}

TEST_CASE("of a copy of an older epoch no state, result or verdict is taken, and it is told to go") {
  Two house;
  house.report(house.w);
  house.pass(22, {&house.x});
  house.settle(house.x);
  REQUIRE(house.task("a").state.worker == "x");
  const uint64_t epoch = house.epoch();
  auto& copy = house.w.tasks["a"];
  for (const char* state : {"RUNNING", "STOPPED"}) {
    CAPTURE(state);
    copy.state = state;
    copy.counters.steps = 1'000'000;
    if (copy.state == "STOPPED") copy.verdict.kind = "finished";
    const auto told = house.renewal(house.w);
    CHECK(house.task("a").state.worker == "x");
    CHECK(house.state("a") == "PAUSED");
    CHECK(house.task("a").state.counters.steps < 1'000'000);
    CHECK(house.epoch() == epoch);
    if (copy.state == "RUNNING") {
      CHECK(order_for(told, "a").order == "stop");
      CHECK(order_for(told, "a").epoch == epoch);
    } else {
      CHECK(order_for(told, "a").task.empty());
      CHECK(settled_as(told, "a") == "again");  // nothing of it may be deleted
    }
  }
  // The same under a new registration.
  copy.state = "RUNNING";
  CHECK(order_for(house.join(house.w), "a").epoch == epoch);
  CHECK(house.task("a").state.worker == "x");
}

TEST_CASE("a worker that is heard again in time goes on with its task, and its verdict counts") {
  Two house;
  const uint64_t epoch = house.epoch();
  house.report(house.w);
  house.pass(18, {&house.x});
  REQUIRE(house.task("a").state.why == "fenced");
  SECTION("alive") {
    CHECK(order_for(house.renewal(house.w), "a").order == "run");
    CHECK(house.state("a") == "PAUSED");
    CHECK(house.epoch() == epoch);
    CHECK(house.task("a").restarts == 0);
    house.pass(30, {&house.w, &house.x});
    CHECK(house.task("a").state.worker == "w");
  }
  SECTION("ended") {
    House::end(house.w, "a", "finished");
    const auto told = house.renewal(house.w);
    CHECK(house.verdict("a").kind == "finished");
    CHECK(settled_as(told, "a") == "ended");
  }
}

TEST_CASE("a task that has ended on its worker is placed again at once, under a new epoch") {
  Two house;
  const uint64_t first = house.epoch();
  House::end(house.w, "a", "lost");
  house.report(house.w);
  house.w.tasks.erase("a");
  house.settle(house.x);
  house.settle(house.w);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.epoch() > first);
}

TEST_CASE("what its worker ended because this manager was away costs a task no restart") {
  Two house;
  House::end(house.w, "a", "lost");
  house.w.tasks["a"].verdict.cause = "expired";
  house.report(house.w);
  house.w.tasks.erase("a");
  house.settle(house.x);
  house.settle(house.w);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").restarts == 0);
}

TEST_CASE("a manager that was killed gives no epoch twice") {
  Two house;
  std::vector<uint64_t> epochs{house.epoch()};
  for (int n = 0; n < 3; ++n) {
    house.restart(false);
    House::end(house.w, "a", "lost");
    house.join(house.w);
    house.w.tasks.clear();
    house.join(house.x);
    house.pass(30, {&house.w, &house.x});
    REQUIRE(house.state("a") == "PAUSED");
    CHECK(house.epoch() > epochs.back());
    epochs.push_back(house.epoch());
    if (house.task("a").state.worker != "w") {
      std::swap(house.w, house.x);
    }
  }
}

TEST_CASE("after its start a manager places nothing that may be somewhere already; new tasks it does") {
  House house([](CoreConfig& config) { config.orders = {}; });
  FakeWorker worker("w", 0);
  REQUIRE(house.load(load_of("queued", 0)).ok());
  house.restart();
  CHECK(house.task("queued").state.why == "fenced");
  CHECK(contains(house.reason("queued"), "before the manager's start"));
  house.join(worker);
  REQUIRE(house.load(load_of("new", 0)).ok());
  house.pass(15, {&worker});
  CHECK(house.state("new") == "PAUSED");
  CHECK(house.state("queued") == "SUBMITTED");
  house.pass(8, {&worker});
  CHECK(house.state("queued") == "PAUSED");
}

TEST_CASE("an order of a manager that was killed, still on its way, makes no second copy") {
  Two house;
  REQUIRE(house.load(load_of("b", 0)).ok());
  house.out.sent.clear();
  house.restart(false);  // it had told somebody to create b, who has not read that yet
  house.join(house.w);
  house.join(house.x);
  house.pass(15, {&house.w, &house.x});
  CHECK(house.w.tasks.count("b") + house.x.tasks.count("b") == 0);
}

TEST_CASE(
    "on yesterday's state file nothing is deleted and nothing stopped: what it does not know is paused, and shown") {
  Two house;
  Backup yesterday(house, "yesterday.db");
  house.join(house.w);
  house.join(house.x);
  REQUIRE(house.load(load_of("later", 0)).ok());
  house.pass(4, {&house.w, &house.x});
  FakeWorker& has = house.w.tasks.count("later") != 0 ? house.w : house.x;
  REQUIRE(has.tasks.count("later") == 1);
  has.tasks["later"].sha256 = sha256_hex(plugin_bytes());
  has.tasks["later"].counters.steps = 77;
  house.report(has);
  Backup today(house, "today.db");
  yesterday.restore();
  for (FakeWorker* worker : {&house.w, &house.x}) {
    const auto plan = house.join(*worker);
    for (const auto& order : plan.orders) CHECK(order.order != "stop");
    if (worker == &has) {
      CHECK(order_for(plan, "later").order == "pause");
      CHECK(order_for(plan, "later").epoch == has.tasks["later"].epoch);  // so it is renewed, and kept
    }
  }
  house.pass(200, {&house.w, &house.x});
  CHECK(has.tasks.count("later") == 1);
  const auto shown = house.task("later");
  CHECK(shown.state.why == "not_recorded");
  CHECK(contains(shown.state.reason, "on worker " + has.name));
  CHECK(shown.state.counters.steps == 77);
  CHECK(house.state("a") == "PAUSED");  // known to it, and where it was
  CHECK(house.task("a").restarts == 0);
  // Its name is taken; `task` shows it; it cannot be ordered about.
  CHECK(house.load(load_of("later", 0)).error().code == Code::kAlreadyExists);
  house.core->show(++house.tickets, "later");
  CHECK(house.task_of(house.tickets)->state.why == "not_recorded");
  CHECK(contains(house.resume("later").error().message, "no record"));
  // What it has ended with is not taken as settled.
  SECTION("its end is not taken for recorded") {
    House::end(has, "later", "finished");
    CHECK(settled_as(house.renewal(has), "later").empty());
  }
  SECTION("a user ends it: that is a record, and a verdict") {
    house.out.sent.clear();
    REQUIRE(house.stop("later").ok());
    const auto orders = house.out.take<bus::TaskOrder>();
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].second.order == "stop");
    CHECK(orders[0].second.epoch == has.tasks["later"].epoch);
    House::end(has, "later", "stopped");
    const auto told = house.renewal(has);
    CHECK(settled_as(told, "later") == "ended");
    CHECK(house.verdict("later").kind == "stopped");
    house.restart();
    CHECK(house.verdict("later").kind == "stopped");
  }
  SECTION("under the state file that has it, it goes on") {
    today.restore();
    house.join(has.name == "w" ? house.x : house.w);
    CHECK(order_for(house.join(has), "later").order == "run");
    house.pass(30, {&house.w, &house.x});
    CHECK(house.task("later").state.worker == has.name);
    CHECK(house.task("later").restarts == 0);
    CHECK(house.task("later").state.why.empty());
  }
}

TEST_CASE("on yesterday's state file a task that was placed anew since stays where it is") {
  Two house;
  Backup backup(house, "yesterday.db");
  house.join(house.x);
  house.pass(40, {&house.x});  // w has gone; a is on x now
  REQUIRE(house.task("a").state.worker == "x");
  const uint64_t epoch = house.epoch();
  backup.restore();
  REQUIRE(house.task("a").state.worker == "w");  // as it believes
  CHECK(house.epoch() < epoch);
  CHECK(order_for(house.join(house.x), "a").order == "pause");  // there may be a later one yet
  house.pass(30, {&house.x});
  CHECK(house.task("a").state.worker == "x");
  CHECK(house.epoch() == epoch);
  CHECK(order_for(house.renewal(house.x), "a").order == "run");
  // And w, should it come back with what it had, is told to end it.
  CHECK(order_for(house.join(house.w), "a").order == "stop");
  CHECK(order_for(house.renewal(house.w), "a").epoch == epoch);
}

TEST_CASE("on yesterday's state file every new epoch is greater than those that were given since") {
  Two house;
  Backup backup(house, "yesterday.db");
  house.join(house.x);
  house.pass(40, {&house.x});
  const uint64_t since = house.epoch();
  backup.restore();
  SECTION("by the clock, if no worker tells of it") {}
  SECTION("by what workers tell, if the clock was set back") {
    const int64_t now = house.clock.now_ns();
    house.core.reset();
    auto store = StateStore::open(house.config.paths.database());
    REQUIRE(store.ok());
    auto started = Core::start(house.config, std::move(*store), house.out, house.clock,
                               [&house, now] { return (house.clock.now_ns() - now) / kNsPerMs; });
    REQUIRE(started.ok());
    house.core = std::move(*started);
    house.join(house.x);
  }
  REQUIRE(house.load(load_of("new")).ok());
  house.join(house.x);
  house.pass(30, {&house.x});
  REQUIRE(house.x.tasks.count("new") == 1);
  CHECK(house.x.tasks["new"].epoch > since);
}

TEST_CASE("workers of an earlier version, which know of no epochs, are treated as they were") {
  House house;
  FakeWorker old("w", 0);
  old.earlier_version = true;
  CHECK(house.join(old).heard == 0);
  REQUIRE(house.load(load_of("a", 0)).ok());
  house.settle(old);
  CHECK(house.state("a") == "PAUSED");
  house.pass(6);
  CHECK(house.state("a") == "SUBMITTED");
  house.report(old);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").restarts == 0);
  bus::TaskReport stranger;
  stranger.task = "stranger";
  stranger.purpose = "run";
  stranger.state = "PAUSED";
  old.tasks["stranger"] = stranger;
  CHECK(order_for(house.join(old), "stranger").order == "pause");  // it would stop what it is not told of
  House::end(old, "a", "finished");
  house.report(old);
  CHECK(house.verdict("a").kind == "finished");
}

TEST_CASE("an epoch that cannot be does not use up all others") {
  Two house;
  auto report = house.report_of(house.x);
  bus::TaskReport liar;
  liar.task = "liar";
  liar.purpose = "run";
  liar.state = "RUNNING";
  liar.epoch = UINT64_MAX;
  report.tasks.push_back(liar);
  CHECK(house.send(house.x, report).ok());
  house.x.tasks.clear();
  House::end(house.w, "a", "lost");
  house.report(house.w);
  house.w.tasks.clear();
  house.pass(5, {&house.w, &house.x});
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.epoch() < UINT64_MAX / 2);
}
