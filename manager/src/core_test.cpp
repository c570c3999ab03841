// A task's life as users see it.
#include <unistd.h>

#include "core.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/sha256.hpp"
#include "test_support.hpp"
#include "verdicts.hpp"

using namespace freeride;
using namespace freeride::manager;

TEST_CASE("a task is profiled, placed, created and runs") {
  House house;
  FakeWorker worker("w", 3);
  house.join(worker);
  REQUIRE(house.load(load_of("a", 3)).ok());
  CHECK(house.reason("a") == "being profiled on w");
  auto profile = house.out.take<bus::CreateTask>();
  REQUIRE(profile.size() == 1);
  CHECK(profile[0].second.purpose == "profile");
  CHECK(profile[0].second.memory_limit_bytes == 2048LL << 20);
  CHECK(profile[0].second.steps == policy::kLeastProfileSteps);
  CHECK(profile[0].second.sha256 == sha256_hex(plugin_bytes()));
  house.out.sent.push_back(profile[0].first);
  house.obey(worker);
  auto run = house.out.take<bus::CreateTask>();
  REQUIRE(run.size() == 1);
  CHECK(run[0].second.purpose == "run");
  CHECK(run[0].second.task == "a");
  CHECK(run[0].second.predicted_step_ns == 2 * kNsPerMs);
  house.out.sent.push_back(run[0].first);
  house.obey(worker);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.task("a").state.worker == "w");
  worker.tasks["a"].state = "RUNNING";
  worker.tasks["a"].counters.steps = 7;
  house.report(worker);
  CHECK(house.state("a") == "RUNNING");
  CHECK(house.task("a").state.counters.steps == 7);
  House::end(worker, "a", "finished");
  house.report(worker);
  CHECK(house.state("a") == "STOPPED");
  CHECK(house.verdict("a").kind == "finished");
}

TEST_CASE("a profile is taken once for content, parameters and device model") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  house.settle(worker);
  REQUIRE(house.load(load_of("b")).ok());
  auto next = house.out.take<bus::CreateTask>();
  REQUIRE(next.size() == 1);
  CHECK(next[0].second.purpose == "run");
  auto other = load_of("c");
  other.params["size"] = "2";
  REQUIRE(house.load(other).ok());
  next = house.out.take<bus::CreateTask>();
  REQUIRE(next.size() == 1);
  CHECK(next[0].second.purpose == "profile");
  SECTION("also after a restart of the manager") {
    house.restart();
    FakeWorker again("w", 0);
    house.join(again);
    REQUIRE(house.load(load_of("d")).ok());
    bool ran = false;
    for (auto& [sent, order] : house.out.take<bus::CreateTask>())
      ran = ran || (order.task == "d" && order.purpose == "run");
    CHECK(ran);
  }
}

TEST_CASE("two tasks of the same plugin share one profile run") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  REQUIRE(house.load(load_of("b")).ok());
  CHECK(house.out.take<bus::CreateTask>().size() == 1);
}

TEST_CASE("load before any worker waits, and says so") {
  House house;
  REQUIRE(house.load(load_of("a", 3)).ok());
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.reason("a") == "waiting for a worker: none is there; start freeride-worker");
  FakeWorker worker("w");
  house.join(worker);
  house.settle(worker);  // the wait is used for the profile
  CHECK(house.reason("a") == "waiting for a trainer with stage 3");
  worker.stage = 3;
  house.report(worker);
  house.settle(worker);
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("what can never work is refused at once") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  auto stage = house.load(load_of("a", 4));
  REQUIRE_FALSE(stage.ok());
  CHECK(stage.error().code == Code::kInvalidArgument);
  CHECK(contains(stage.error().message, "its stages are 0-3"));
  auto large = load_of("a");
  large.memory_bytes = 9LL << 30;
  CHECK(house.load(large).error().code == Code::kRejected);
  CHECK(contains(house.load(large).error().message, "the largest worker, w, has 8192 MiB"));
  auto job = load_of("a");
  job.job = "bert";
  CHECK(house.load(job).error().code == Code::kNotFound);
  CHECK(contains(house.load(job).error().message, "attached: gpt"));
  CHECK(house.load(load_of("not a name")).error().code == Code::kInvalidArgument);
  CHECK(house.load(load_of("../up")).error().code == Code::kInvalidArgument);
  CHECK(house.load(load_of(".x")).error().code == Code::kInvalidArgument);  // a worker would refuse it
  for (const int wrong : {-2, -100}) CHECK(house.load(load_of("a", wrong)).error().code == Code::kInvalidArgument);
  auto negative = load_of("a");
  negative.memory_bytes = -1;
  CHECK(house.load(negative).error().code == Code::kInvalidArgument);
  auto zero = load_of("a");
  zero.params["k"] = std::string("v\0w", 3);
  CHECK(house.load(zero).error().code == Code::kInvalidArgument);
  FakeWorker second("x", 0);
  second.job = "bert";
  house.join(second);
  auto several = house.load(load_of("a"));
  CHECK(several.error().code == Code::kInvalidArgument);
  CHECK(contains(several.error().message, "bert, gpt"));
  auto both = load_of("a");
  both.any_job = true;
  both.job = "gpt";
  CHECK(contains(house.load(both).error().message, "names the job gpt and takes any"));
  CHECK(house.tasks().empty());
  both.job.clear();
  CHECK(house.load(both).ok());
}

TEST_CASE("a name is free again once its task has ended; without a name one is made") {
  House house;
  REQUIRE(house.load(load_of("a")).ok());
  CHECK(house.load(load_of("a")).error().code == Code::kAlreadyExists);
  REQUIRE(house.stop("a").ok());
  CHECK(house.verdict("a").kind == "stopped");
  REQUIRE(house.load(load_of("a")).ok());
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.load(load_of(""))->state.task == "side");
  CHECK(house.load(load_of(""))->state.task == "side-2");
}

TEST_CASE("where a plugin's content comes from: bytes, hash, drop folder") {
  House house;
  auto load = load_of("a");
  SECTION("bytes that are no plugin") {
    house.core->load(++house.tickets, "r", load, "not an ELF file");
    CHECK(house.task_of(house.tickets).error().code == Code::kInvalidArgument);
  }
  SECTION("a hash that nobody knows, or that is none") {
    load.sha256 = std::string(64, 'a');
    CHECK(house.load(load, {}, false).error().code == Code::kNotFound);
    load.sha256 = "../../etc/passwd";
    CHECK(house.load(load, {}, false).error().code == Code::kInvalidArgument);
  }
  SECTION("a hash that the store has") {
    REQUIRE(house.load(load).ok());
    auto again = load_of("b");
    again.sha256 = sha256_hex(plugin_bytes());
    CHECK(house.load(again, {}, false).ok());
  }
  SECTION("a name that a worker has reported; a rejected one says why") {
    FakeWorker worker(host_id() + ":cpu-0", 0);
    bus::PluginState good, bad;
    good.name = "side.so";
    good.sha256 = std::string(64, 'b');
    good.state = "added";
    bad.name = "bad.so";
    bad.state = "rejected";
    bad.reason = "not an ELF file";
    worker.plugins = {good, bad};
    house.join(worker);
    CHECK(house.load(load, {}, false)->state.sha256 == good.sha256);
    auto rejected = load_of("b");
    rejected.plugin = "bad.so";
    CHECK(house.load(rejected, {}, false).error().code == Code::kRejected);
    CHECK(contains(house.load(rejected, {}, false).error().message, "not an ELF file"));
    rejected.plugin = "none.so";
    CHECK(contains(house.load(rejected, {}, false).error().message, "there are: side.so"));
  }
  SECTION("a name is what it is on this host; what other hosts have under it, only who names one of them gets") {
    const auto worker_with = [](const std::string& name, char content) {
      FakeWorker worker(name, 0);
      bus::PluginState plugin;
      plugin.name = "side.so";
      plugin.sha256 = std::string(64, content);
      plugin.state = "added";
      worker.plugins = {plugin};
      return worker;
    };
    auto other = worker_with("a:cpu-0", 'a'), here = worker_with(host_id() + ":cpu-0", 'd');
    house.join(other);
    // Its user may have sent the same content, so that it is in the store.
    REQUIRE(house.load(load_of("sent")).ok());
    const auto refused = house.load(load, {}, false);
    CHECK(refused.error().code == Code::kNotFound);
    CHECK(contains(refused.error().message, "but one on host a"));
    CHECK(contains(refused.error().hint, "freeride-ctl load a:side.so"));
    house.join(here);
    CHECK(house.load(load, {}, false)->state.sha256 == std::string(64, 'd'));
    here.plugins[0].state = "rejected";
    here.plugins[0].reason = "not an ELF file";
    house.report(here);
    CHECK(house.load(load_of("b"), {}, false).error().code == Code::kRejected);
  }
  SECTION("a file just dropped, before any worker has seen it") {
    CHECK(house.load(load, {}, false).error().code == Code::kNotFound);
    std::filesystem::create_directories(house.config.paths.drop_dir());
    std::ofstream(house.config.paths.drop_dir() / "side.so", std::ios::binary) << plugin_bytes();
    CHECK(house.load(load, {}, false)->state.sha256 == sha256_hex(plugin_bytes()));
  }
  SECTION("a path without its bytes") {
    load.plugin = "/etc/passwd";
    CHECK(house.load(load, {}, false).error().code == Code::kInvalidArgument);
  }
}

TEST_CASE("a repeated load makes no second task, also over a restart of the manager") {
  House house;
  REQUIRE(house.load(load_of(""), "same").ok());
  CHECK(house.load(load_of(""), "same")->state.task == "side");
  house.restart(false);
  CHECK(house.load(load_of(""), "same")->state.task == "side");
  CHECK(house.tasks().size() == 1);
}

TEST_CASE("priority goes first, then submission") {
  House house;
  FakeWorker worker("w");
  house.join(worker);
  for (const char* name : {"early", "late", "urgent"}) {
    auto load = load_of(name, 0);
    load.priority = std::string(name) == "urgent" ? 5 : 0;
    REQUIRE(house.load(load).ok());
  }
  house.settle(worker);
  worker.stage = 0;
  house.report(worker);
  std::vector<std::string> order;
  for (auto& [sent, create] : house.out.take<bus::CreateTask>()) order.push_back(create.task);
  CHECK(order == std::vector<std::string>{"urgent", "early", "late"});
}

TEST_CASE("memory is promised once: what does not fit waits until something ends") {
  House house;
  FakeWorker worker("w", 0);
  worker.memory_bytes = 4LL << 30;
  house.join(worker);
  auto load = load_of("a");
  load.memory_bytes = 3LL << 30;
  REQUIRE(house.load(load).ok());
  house.settle(worker);
  CHECK(house.state("a") == "PAUSED");
  load.name = "b";
  REQUIRE(house.load(load).ok());
  CHECK(house.reason("b") == "waiting for memory: needs 3072 MiB, w has 1024 MiB free");
  REQUIRE(house.stop("a").ok());
  house.settle(worker);
  house.settle(worker);
  CHECK(house.state("b") == "PAUSED");
}

TEST_CASE("stop, pause and resume answer rightly in every state") {
  House house;
  FakeWorker worker("w", 0);
  CHECK(house.stop("nobody").error().code == Code::kNotFound);
  REQUIRE(house.load(load_of("a", 0)).ok());
  SECTION("submitted") {
    REQUIRE(house.pause("a").ok());
    CHECK(house.task("a").state.paused_by_user);
    house.join(worker);
    house.obey(worker);
    auto create = house.out.take<bus::CreateTask>();
    REQUIRE(create.size() == 1);
    CHECK(create[0].second.start_paused);
    REQUIRE(house.stop("a").ok());
  }
  SECTION("on a worker") {
    house.join(worker);
    house.settle(worker);
    REQUIRE(house.pause("a").ok());
    auto order = house.out.take<bus::TaskOrder>();
    REQUIRE(order.size() == 1);
    CHECK(order[0].second.order == "pause");
    house.report(worker);
    CHECK(house.reason("a") == "paused by the user");
    REQUIRE(house.resume("a").ok());
    CHECK(house.out.take<bus::TaskOrder>()[0].second.order == "run");
    REQUIRE(house.stop("a").ok());
    CHECK(house.reason("a") == "stopping");
    CHECK_FALSE(house.pause("a").ok());
    CHECK_FALSE(house.resume("a").ok());
    CHECK(house.stop("a").ok());  // again is no harm
    house.obey(worker);
    CHECK(house.verdict("a").kind == "stopped");
  }
  SECTION("ended: the error says that and how") {
    REQUIRE(house.stop("a").ok());
    for (const auto& result : {house.stop("a"), house.pause("a"), house.resume("a")}) {
      REQUIRE_FALSE(result.ok());
      CHECK(result.error().code == Code::kInvalidArgument);
      CHECK(contains(result.error().message, "it has ended (stopped: stopped by the user before it ran)"));
    }
  }
}

TEST_CASE("what has ended can be removed, unless it may be needed to know what its worker has left") {
  House house;
  FakeWorker worker("w", 0);
  const auto remove = [&house](const std::string& task) {
    house.core->remove(++house.tickets, task);
    return house.task_of(house.tickets);
  };
  CHECK(remove("nobody").error().code == Code::kNotFound);
  REQUIRE(house.load(load_of("a", 0)).ok());
  CHECK(remove("a").error().code == Code::kInvalidArgument);  // it has not ended
  house.join(worker);
  house.settle(worker);
  REQUIRE(house.stop("a").ok());
  house.obey(worker);
  REQUIRE(house.verdict("a").kind == "stopped");
  SECTION("its worker still names it") {
    CHECK(remove("a").error().code == Code::kUnavailable);
  }
  SECTION("its worker is done with it") {
    worker.tasks.clear();
    house.report(worker);
    CHECK(remove("a")->state.verdict.kind == "stopped");
    CHECK(house.tasks().empty());
    CHECK(house.out.tasks.back().task == "a");
    CHECK(house.out.tasks.back().state == bus::TaskState::kRemoved);  // so that the broker forgets it, too
    CHECK(remove("a").error().code == Code::kNotFound);
    house.restart();
    CHECK(house.tasks().empty());  // it is off the disk, too
    REQUIRE(house.load(load_of("a", 0)).ok());
  }
}

TEST_CASE("an order that a worker did not take is in its next plan, until one is taken") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  house.settle(worker);
  house.pass(1, {&worker});
  house.out.sent.clear();
  REQUIRE(house.pause("a").ok());
  house.out.sent.clear();  // lost on the way
  for (int n = 0; n < 4; ++n) {
    house.clock.tick(kNsPerSec);
    house.report(worker);
    house.core->tick();
  }
  auto plans = house.out.take<bus::WorkerPlan>();
  REQUIRE_FALSE(plans.empty());
  REQUIRE(plans.back().second.orders.size() == 1);
  CHECK(plans.back().second.orders[0].order == "pause");
  house.acknowledge(plans.back().first);
}

TEST_CASE("a failed profile ends the tasks that need it, with its verdict") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  REQUIRE(house.load(load_of("b")).ok());
  auto create = house.out.take<bus::CreateTask>();
  REQUIRE(create.size() == 1);
  auto& profile = worker.tasks[create[0].second.task];
  profile.task = create[0].second.task;
  profile.purpose = "profile";
  profile.state = "STOPPED";
  profile.verdict.kind = "crashed";
  profile.verdict.signal = 11;
  profile.verdict.reason = "signal 11";
  house.report(worker);
  for (const char* name : {"a", "b"}) {
    CHECK(house.verdict(name).kind == "crashed");
    CHECK(house.verdict(name).signal == 11);
    CHECK(house.verdict(name).reason == "while being profiled on w: signal 11");
  }
}

TEST_CASE("a worker's refusal becomes a verdict; its 'not now' becomes a wait") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  house.obey(worker);
  auto create = house.out.take<bus::CreateTask>();
  REQUIRE(create.size() == 1);
  SECTION("never") {
    house.acknowledge(create[0].first, Error{Code::kRejected, "no such sandbox", {}});
    CHECK(house.verdict("a").kind == "rejected");
    CHECK(contains(house.verdict("a").reason, "no such sandbox"));
  }
  SECTION("not now") {
    house.acknowledge(create[0].first, Error{Code::kExhausted, "no memory", {}});
    CHECK(house.state("a") == "SUBMITTED");
    CHECK(contains(house.reason("a"), "no memory"));
    house.pass(6, {&worker});
    house.settle(worker);
    CHECK(house.state("a") == "PAUSED");
  }
  SECTION("no answer at all: sent again") {
    house.clock.tick(3 * kNsPerSec / 1);
    house.report(worker);
    house.core->tick();
    auto again = house.out.take<bus::CreateTask>();
    REQUIRE(again.size() == 1);
    CHECK(again[0].second.task == "a");
  }
}

TEST_CASE("tasks, verdicts and profiles survive a manager that is killed") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("runs")).ok());
  house.settle(worker);
  auto odd = load_of("waits", 2);
  odd.params["key"] = "value";
  odd.priority = 7;
  odd.user = "ann";
  REQUIRE(house.load(odd).ok());
  REQUIRE(house.load(load_of("ended", 2)).ok());
  REQUIRE(house.stop("ended").ok());
  house.restart(false);
  REQUIRE(house.tasks().size() == 3);
  CHECK(contains(house.reason("runs"), "the manager was restarted"));
  CHECK(house.task("waits").load.params.at("key") == "value");
  CHECK(house.task("waits").load.priority == 7);
  CHECK(house.verdict("ended").kind == "stopped");
  auto plan = house.join(worker);  // it outlived the manager, with its task
  REQUIRE(plan.orders.size() == 1);
  CHECK(plan.orders[0].task == "runs");
  CHECK(plan.orders[0].order == "run");
  CHECK(house.state("runs") == "PAUSED");
  CHECK(house.task("runs").restarts == 0);
}

TEST_CASE("after a restart a worker that does not come back loses its task to the queue") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  house.settle(worker);
  house.restart();
  house.pass(14);
  CHECK(house.state("a") == "PAUSED");
  house.pass(3);
  CHECK(house.state("a") == "SUBMITTED");
}

TEST_CASE("ended tasks are kept up to a bound, in memory and on disk") {
  House house([](CoreConfig& config) { config.history = 16; });
  for (int n = 0; n < 60; ++n) {
    REQUIRE(house.load(load_of("t" + std::to_string(n))).ok());
    REQUIRE(house.stop("t" + std::to_string(n)).ok());
    house.pass(1);
  }
  CHECK(house.tasks().size() <= 27);
  CHECK(house.tasks().size() >= 16);
  CHECK(std::count_if(house.out.tasks.begin(), house.out.tasks.end(), [](const auto& task) {
          return task.state == bus::TaskState::kRemoved;
        }) == 60 - static_cast<std::ptrdiff_t>(house.tasks().size()));
  CHECK(house.verdict("t59").kind == "stopped");
  house.restart();
  CHECK(house.tasks().size() <= 27);
}

TEST_CASE("a task follows all that it waits for, however early one of them has finished") {
  House house([](CoreConfig& config) { config.history = 0; });
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("early")).ok());
  REQUIRE(house.load(load_of("late")).ok());
  auto last = load_of("last");
  last.after = {"afterok:late", "afterok:early"};
  REQUIRE(house.load(last).ok());
  house.settle(worker);
  House::end(worker, "early", "finished");
  house.report(worker);
  // So many end since that nothing is left of it.
  for (int n = 0; n < 20; ++n) {
    REQUIRE(house.load(load_of("t" + std::to_string(n))).ok());
    REQUIRE(house.stop("t" + std::to_string(n)).ok());
    house.pass(1, {&worker});
  }
  CHECK(house.state("last") == "SUBMITTED");
  CHECK(contains(house.reason("last"), "late"));
  const bool restarted = GENERATE(false, true);
  if (restarted) {
    house.restart();
    house.join(worker);
    house.pass(1, {&worker});
  }
  House::end(worker, "late", "finished");
  house.report(worker);
  house.pass(2, {&worker});
  CHECK(house.state("last") == "PAUSED");
}

TEST_CASE("a task's log comes from its worker, or says why not") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  house.settle(worker);
  house.core->show(++house.tickets, "a");
  auto asked = house.out.take<bus::GetLog>();
  REQUIRE(asked.size() == 1);
  CHECK(house.out.answers.count(house.tickets) == 0);
  SECTION("answered") {
    house.core->worker_reply("somebody else", asked[0].first.id, {}, "a lie");
    CHECK(house.out.answers.count(house.tickets) == 0);
    house.core->worker_reply(asked[0].first.peer, asked[0].first.id, {}, "the log");
    CHECK(house.task_of(house.tickets)->log_tail == "the log");
  }
  SECTION("silence") {
    const Ticket ticket = house.tickets;
    house.pass(3, {&worker});
    CHECK(contains(house.task_of(ticket)->log_tail, "did not answer"));
  }
  house.core->show(++house.tickets, "nobody");
  CHECK(house.task_of(house.tickets).error().code == Code::kNotFound);
}

TEST_CASE("every verdict that the manager makes names its cause") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("stopped", 3)).ok());
  CHECK(house.stop("stopped")->state.verdict.cause == "order");

  REQUIRE(house.load(load_of("refused")).ok());
  house.obey(worker);
  auto create = house.out.take<bus::CreateTask>();
  REQUIRE(create.size() == 1);
  house.acknowledge(create[0].first, Error{Code::kPermission, "no such sandbox", {}});
  CHECK(house.verdict("refused").kind == "rejected");
  CHECK(house.verdict("refused").cause == "refused");

  auto large = load_of("large", 3);
  large.memory_bytes = 8LL << 30;
  REQUIRE(house.load(large).ok());
  FakeWorker small("small", 3);
  small.memory_bytes = 1LL << 30;
  house.join(small);
  CHECK(house.verdict("large").kind == "rejected");
  CHECK(house.verdict("large").cause == "no_room");
}

TEST_CASE("a worker's verdict is kept whole; unknown kinds have failed, and unknown causes are left out") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  for (const char* name : {"whole", "melted"}) {
    REQUIRE(house.load(load_of(name)).ok());
    house.settle(worker);
  }
  house.end(worker, "whole", "crashed");
  house.end(worker, "melted", "melted");
  auto& whole = worker.tasks["whole"].verdict;
  whole.cause = "signal";
  whole.exit_code = 3;
  whole.evidence = std::vector<std::string>(100, "overran: late");
  auto& melted = worker.tasks["melted"].verdict;
  melted.cause = "heat";
  melted.reason = "at 2000 degrees";
  house.report(worker);
  CHECK(house.verdict("whole").cause == "signal");
  CHECK(house.verdict("whole").exit_code == 3);
  CHECK(house.verdict("whole").evidence.size() == policy::Verdict::kMostEvidence);
  CHECK(house.verdict("melted").kind == "failed");
  CHECK(house.verdict("melted").cause.empty());
  CHECK(contains(house.verdict("melted").reason, "'melted': at 2000 degrees"));
}

TEST_CASE("a task on a worker shows the worker's reason in the manager's words, with its figures") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  CHECK(house.task("a").state.why == "profiling");
  house.settle(worker);
  CHECK(house.task("a").state.why.empty());  // a worker of an earlier version says nothing
  CHECK(house.reason("a").empty());

  auto& report = worker.tasks["a"];
  report.why = "step_too_long";
  report.bubble_ns = 9 * kNsPerMs;
  report.counters.predicted_ns = 15 * kNsPerMs;
  report.counters.leases = 30;
  report.counters.skipped = 25;
  house.report(worker);
  CHECK(house.task("a").state.why == "step_too_long");
  CHECK(contains(house.reason("a"), "15 ms, does not fit the bubbles, the longest of which is 9 ms (25 of 30"));

  report.why = "work_too_long";
  bus::ShimCounters shim;
  shim.too_long_name = "gemm" + std::string(1000, 'x');
  shim.too_long_ns = 80 * kNsPerMs;
  shim.lease_longest_ns = 50 * kNsPerMs;
  for (int i = 0; i < 100; ++i) shim.unknown["cuStrange" + std::to_string(i)] = 1;
  report.shim = {shim, shim};
  house.report(worker);
  CHECK(house.task("a").state.why == "work_too_long");
  CHECK(contains(house.reason("a"), ", 80 ms, is longer than its leases, the longest of which was 50 ms"));
  REQUIRE(house.task("a").shim.size() == 1);
  CHECK(house.task("a").shim.front().too_long_name.size() <= 64);
  CHECK(house.task("a").shim.front().unknown.size() == bus::ShimCounters::kMostNames);
  report.shim.clear();
  report.why = "step_too_long";
  house.report(worker);

  const size_t published = house.out.tasks.size();
  report.counters.leases = report.counters.skipped = 60;
  house.report(worker);
  CHECK(contains(house.reason("a"), "60 of 60"));
  CHECK(house.out.tasks.size() == published);  // figures alone are no news

  report.why = "of a later version";
  house.report(worker);
  CHECK(house.reason("a").empty());
  report.why = "holdout";
  CHECK(house.pause("a").ok());
  house.report(worker);
  CHECK(house.task("a").state.why == "paused_by_user");  // the manager's own orders come first
  CHECK(house.stop("a").ok());
  house.obey(worker);
  CHECK(house.state("a") == "STOPPED");
  CHECK(house.task("a").state.why.empty());
}

TEST_CASE("a task that was queued again says since when before it says what it waits for") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a")).ok());
  house.settle(worker);
  house.pass(8);
  CHECK(house.task("a").state.why == "no_worker");
  CHECK(house.reason("a") == "worker w was lost; waiting for a worker: none is there; start freeride-worker");
}

TEST_CASE("while a whole plugin is taken in or read for a worker, everybody else is served") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  const std::string sha256 = house.load(load_of("first"))->state.sha256;
  house.out.held = true;
  const auto waits = [&] { return house.out.answers.count(house.tickets) == 0; };
  auto load = load_of("second");
  house.core->load(++house.tickets, "second", load, plugin_bytes());
  CHECK(waits());
  const Ticket second = house.tickets;
  house.core->load_later(++house.tickets, "third", load_of("third"), plugin_bytes());
  house.core->load_waiting();
  CHECK(waits());
  bus::TakeProfile profile;
  profile.load = load_of("");
  house.core->take_profile(++house.tickets, profile, plugin_bytes());
  CHECK(waits());
  bus::SubmitBatch batch;
  batch.load = load_of("batch");
  batch.id = "b";
  batch.items = 10;
  house.core->submit_batch(++house.tickets, batch, plugin_bytes());
  CHECK(waits());
  house.core->replace(++house.tickets, "replace", "first", load_of(""), plugin_bytes());
  CHECK(waits());
  std::filesystem::create_directories(house.config.paths.drop_dir());
  std::ofstream(house.config.paths.drop_dir() / "big.so", std::ios::binary) << plugin_bytes();
  load = load_of("dropped");
  load.plugin = "big.so";
  house.core->load_later(++house.tickets, "dropped", load);
  house.core->load_waiting();
  CHECK(waits());
  const Ticket dropped = house.tickets;
  house.core->fetch_plugin(++house.tickets, {sha256});
  CHECK(waits());
  const Ticket fetched = house.tickets;
  const std::string other = plugin_bytes() + "more";
  house.core->write_plugin(++house.tickets, "ann", {sha256_hex(other), other.size(), 0}, other);
  CHECK(waits());
  const Ticket written = house.tickets;
  house.report(worker);
  CHECK(house.stop("first").ok());
  house.pass(60, {&worker});  // what is being taken in is not dropped either
  house.out.let_go();
  CHECK(house.task_of(second)->state.task == "second");
  CHECK(house.task_of(dropped)->state.sha256 == sha256);
  CHECK(house.answer_of(fetched).ok());
  CHECK(house.answer_of(written).ok());
  CHECK(house.out.attachments[fetched] == plugin_bytes());
  for (Ticket ticket = second; ticket <= fetched; ++ticket) CHECK_FALSE(house.out.answers.count(ticket) == 0);
}

TEST_CASE("loads by the names of new files in the drop folder are taken in a few at a time") {
  House house;
  std::filesystem::create_directories(house.config.paths.drop_dir());
  std::ofstream(house.config.paths.drop_dir() / "big.so", std::ios::binary) << plugin_bytes();
  auto load = load_of("");
  load.plugin = "big.so";
  house.out.held = true;
  for (int n = 0; n < 4; ++n) house.core->load(++house.tickets, "dropped-" + std::to_string(n), load, {});
  CHECK(house.out.answers.empty());  // each may be as large as a plugin can be
  house.core->load(++house.tickets, "dropped-4", load, {});
  CHECK(house.answer_of(house.tickets).error().code == Code::kExhausted);
  house.out.let_go();
  house.core->load(++house.tickets, "dropped-5", load, {});
  CHECK(house.answer_of(house.tickets).ok());
}

TEST_CASE("a step of the wall clock ends no task's time, and forgets no request") {
  House house;
  FakeWorker worker("w", 0);
  house.join(worker);
  auto wish = load_of("a", 0);
  wish.no_profile = true;
  wish.time_limit_s = 3600;
  REQUIRE(house.load(wish, "mine").ok());
  house.settle(worker);
  house.wall_ms = 48LL * 3600 * 1000;
  house.pass(120, {&worker});
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.load(wish, "mine")->state.task == "a");
  CHECK(house.tasks().size() == 1);
  house.clock.tick(3600 * kNsPerSec);
  house.join(worker);
  house.pass(2, {&worker});
  CHECK(house.verdict("a").limit == "time 3600 s");
}

TEST_CASE("a host or job is drained before it comes, if it is said what it is") {
  House house;
  FakeWorker there("h:a", 0), coming("gpu9:b", 1);
  house.join(there);
  const auto drain = [&](const std::string& subject) {
    house.core->drain(++house.tickets, {subject, false});
    return house.answer_of(house.tickets);
  };
  CHECK(drain("gpu9").error().code == Code::kNotFound);  // or mistyped
  CHECK(drain("device:gpu9").error().code == Code::kNotFound);
  REQUIRE(drain("host:gpu9").ok());
  house.join(coming);
  bus::Load load = load_of("a");
  load.no_profile = true;
  load.stage = 1;
  REQUIRE(house.load(load).ok());
  house.pass(4, {&there, &coming});
  CHECK(house.task("a").state.why == "drained");
  house.core->uncordon(++house.tickets, "gpu9");
  REQUIRE(house.answer_of(house.tickets).ok());
  house.pass(2, {&there, &coming});
  CHECK(house.state("a") != "SUBMITTED");

  FakeWorker third("i:c", 2);
  third.job = "1000/next";
  REQUIRE(drain("job:next").ok());
  house.join(third);
  load = load_of("b");
  load.no_profile = true;
  load.job = "next";
  REQUIRE(house.load(load).ok());
  house.pass(4, {&there, &coming, &third});
  CHECK(house.task("b").state.why == "drained");
}

TEST_CASE("a job's name that several users have is refused with theirs, and each can be drained alone") {
  House house;
  FakeWorker own("h:a", 0), alices("h:b", 1), bobs("h:c", 2);  // "gpt": of root or the worker's user
  alices.job = "4000000001/gpt";
  bobs.job = "4000000002/gpt";
  const std::string mine = job_of(geteuid(), "gpt");
  const auto order = [&](bool drain, const std::string& subject) {
    ++house.tickets;
    drain ? house.core->drain(house.tickets, {subject, false}) : house.core->uncordon(house.tickets, subject);
    return house.answer_of(house.tickets);
  };
  const auto drained = [&] {
    std::vector<std::string> names;
    for (auto* worker : {&own, &alices, &bobs}) {
      if (house.renewal(*worker).drain != 0) names.push_back(worker->name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  house.join(own);
  REQUIRE(order(true, "gpt").ok());  // no other is known: this one is meant, and no later one
  house.join(alices);
  house.join(bobs);
  CHECK(drained() == Names{"h:a"});
  for (const char* several : {"gpt", "job:gpt"}) {
    const auto refused = order(true, several);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kInvalidArgument);
    for (const std::string& name : {mine, alices.job, bobs.job})
      CHECK(refused.error().message.find("job:" + name) != std::string::npos);
  }
  CHECK(drained() == Names{"h:a"});
  REQUIRE(order(true, "job:4000000002/gpt").ok());
  CHECK(drained() == Names{"h:a", "h:c"});
  CHECK_FALSE(order(false, "gpt").ok());  // two of that name are drained
  REQUIRE(order(false, "job:" + mine).ok());
  CHECK(drained() == Names{"h:c"});
  REQUIRE(order(true, mine).ok());
  CHECK(drained() == Names{"h:a", "h:c"});
  REQUIRE(order(false, mine).ok());
  REQUIRE(order(false, "gpt").ok());
  CHECK(drained().empty());
}

TEST_CASE("a task of a drained job waits for it, and is not placed on another user's of that name") {
  House house;
  FakeWorker own("h:a", 0), alices("h:b", 0);
  alices.job = "4000000001/gpt";
  house.join(own);
  house.join(alices);
  const std::string mine = "job:" + job_of(geteuid(), "gpt");
  house.core->drain(++house.tickets, {mine, false});
  REQUIRE(house.answer_of(house.tickets).ok());
  bus::Load load = load_of("a");
  load.no_profile = true;
  load.job = "gpt";
  REQUIRE(house.load(load).ok());
  house.pass(4, {&own, &alices});
  CHECK(house.task("a").state.why == "drained");
  CHECK(house.task("a").state.worker.empty());
  house.core->uncordon(++house.tickets, mine);
  REQUIRE(house.answer_of(house.tickets).ok());
  house.pass(2, {&own, &alices});
  CHECK(house.task("a").state.worker == "h:a");
}

TEST_CASE("a job drained before its name is known is every user's, and is meant by the same words") {
  House house;
  FakeWorker own("h:a", 0), alices("h:b", 1);
  alices.job = "4000000001/gpt";
  const auto order = [&](bool drain, const std::string& subject) {
    ++house.tickets;
    drain ? house.core->drain(house.tickets, {subject, false}) : house.core->uncordon(house.tickets, subject);
    return house.answer_of(house.tickets);
  };
  REQUIRE(order(true, "job:gpt").ok());
  house.join(own);
  house.join(alices);
  CHECK(house.renewal(own).drain != 0);
  CHECK(house.renewal(alices).drain != 0);
  const auto again = order(true, "job:gpt");  // asks how far it is
  REQUIRE(again.ok());
  CHECK(std::get<bus::DrainReply>(*again).workers.size() == 2);
  REQUIRE(order(false, "job:gpt").ok());
  CHECK(house.renewal(own).drain == 0);
  CHECK(house.renewal(alices).drain == 0);
}

TEST_CASE("everything drained: workers that join later, too, over a restart, until everything is given back") {
  House house;
  FakeWorker one("h:a", 0), two("i:b", 1), late("j:c", 2);
  house.join(one);
  house.join(two);
  const auto reply_to = [&](const auto& order) {
    order();
    auto answer = house.answer_of(house.tickets);
    REQUIRE(answer.ok());
    return std::get<bus::DrainReply>(*answer);
  };
  const auto drained = reply_to([&] { house.core->drain(++house.tickets, {"all", false}); });
  CHECK(drained.scope == "all");
  CHECK(drained.workers.size() == 2);
  house.restart();
  house.join(one);
  house.join(two);
  house.join(late);
  bus::Load load = load_of("a");
  load.no_profile = true;
  REQUIRE(house.load(load).ok());
  house.pass(8, {&one, &two, &late});
  CHECK(house.task("a").state.why == "drained");
  house.core->uncordon(++house.tickets, "i:b");  // that was not drained by its own name
  CHECK(house.answer_of(house.tickets).error().code == Code::kNotFound);
  CHECK(reply_to([&] { house.core->uncordon(++house.tickets, "all"); }).workers.size() == 3);
  house.pass(3, {&one, &two, &late});
  CHECK(house.state("a") != "SUBMITTED");
  house.core->uncordon(++house.tickets, "all");
  CHECK(house.answer_of(house.tickets).error().code == Code::kNotFound);
}
