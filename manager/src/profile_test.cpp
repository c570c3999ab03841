// Profiles: what users ask for, what is kept, what goes from one manager to another.
#include "core.hpp"
#include "freeride/base/sha256.hpp"
#include "test_support.hpp"

using namespace freeride;
using namespace freeride::manager;

namespace {

struct ProfileHouse : House {
  using House::House;
  Result<bus::ProfileReply> reply_of(Ticket ticket) {
    auto answer = answer_of(ticket);
    if (!answer) return answer.error();
    return std::get<bus::ProfileReply>(*answer);
  }
  Result<bus::ProfileReply> take(const bus::TakeProfile& wish) {
    core->take_profile(++tickets, wish, plugin_bytes());
    return reply_of(tickets);
  }
  Ticket follow(const bus::ProfileReply& seen) {
    core->follow_profile(++tickets, {seen.run, seen.state, seen.steps});
    return tickets;
  }
  bool answered(Ticket ticket) { return out.answers.count(ticket) != 0; }
  Result<bus::ProfilesReply> list() {
    core->list_profiles(++tickets, {});
    auto answer = answer_of(tickets);
    if (!answer) return answer.error();
    return std::get<bus::ProfilesReply>(*answer);
  }
  /// The one profile that a worker has been ordered to take, acknowledged.
  std::string ordered(FakeWorker& worker) {
    auto orders = out.take<bus::CreateTask>();
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].second.purpose == "profile");
    CHECK(orders[0].first.peer == "peer-" + worker.name);
    acknowledge(orders[0].first);
    auto& task = worker.tasks[orders[0].second.task];
    task.task = orders[0].second.task;
    task.purpose = "profile";
    task.state = "RUNNING";
    return task.task;
  }
  void finish(FakeWorker& worker, const std::string& run, const bus::Profile& profile) {
    auto& task = worker.tasks[run];
    task.state = "STOPPED";
    task.verdict.kind = "finished";
    task.verdict.reason = "profiled";
    task.init_ns = 1;
    task.profile = {profile};
    report(worker);
  }
};

bus::Profile measured() {
  bus::Profile profile;
  profile.conditions = "idle";
  profile.peak_bytes["host"] = 300LL << 20;
  profile.init_ns = 5;
  profile.steps = {10, 2 * kNsPerMs, 3 * kNsPerMs, 4 * kNsPerMs, 5 * kNsPerMs};
  profile.pieces = {{10, 1, 1 * kNsPerMs, 1 * kNsPerMs, 1 * kNsPerMs},
                    {10, 1, 2 * kNsPerMs, 2 * kNsPerMs, 2 * kNsPerMs}};
  profile.step_ns = {1, 2, 3};
  return profile;
}

bus::TakeProfile wish() {
  bus::TakeProfile take;
  take.load = load_of("");
  return take;
}

void take_one(ProfileHouse& house, FakeWorker& worker) {
  REQUIRE(house.take(wish()).ok());
  house.finish(worker, house.ordered(worker), measured());
  worker.tasks.clear();
  house.report(worker);
}

}  // namespace

TEST_CASE("a profile that a user asks for: taken, followed, kept, and the answer from then on") {
  ProfileHouse house;
  FakeWorker worker("w");
  house.join(worker);
  auto asked = wish();
  asked.load.steps = 10;
  const auto first = house.take(asked);
  REQUIRE(first.ok());
  CHECK(first->state == "starting");
  CHECK(first->worker == "w");
  const std::string run = house.ordered(worker);
  CHECK(first->run == run);
  const Ticket follower = house.follow(*first);
  CHECK_FALSE(house.answered(follower));
  worker.tasks[run].counters.steps = 4;
  house.report(worker);
  const auto running = house.reply_of(follower);
  REQUIRE(running.ok());
  CHECK(running->state == "running");
  CHECK(running->steps == 4);
  const Ticket last = house.follow(*running);
  house.finish(worker, run, measured());
  const auto done = house.reply_of(last);
  REQUIRE(done.ok());
  CHECK(done->state == "done");
  REQUIRE(done->profiles.size() == 1);
  CHECK(done->profiles[0].steps.p99_ns == 4 * kNsPerMs);
  CHECK(done->profiles[0].sha256 == sha256_hex(plugin_bytes()));
  CHECK(done->profiles[0].device_model == "cpu");
  // Kept, also over a restart; taken anew only if one wishes it.
  house.restart(false);
  FakeWorker again("w");
  house.join(again);
  const auto known = house.take(asked);
  REQUIRE(known.ok());
  CHECK(known->run.empty());
  CHECK(known->profiles.at(0).step_ns == std::vector<int64_t>{1, 2, 3});
  CHECK(house.out.take<bus::CreateTask>().empty());
  asked.load.steps = 11;  // more than it has
  CHECK_FALSE(house.take(asked)->run.empty());
  CHECK(house.out.take<bus::CreateTask>().at(0).second.steps == 11);
  house.restart(false);
  house.join(again);
  asked.load.steps = 10;
  asked.again = true;
  CHECK(house.take(asked)->state == "starting");
  CHECK(house.out.take<bus::CreateTask>().size() == 1);
}

TEST_CASE("a profile is what a task is placed by, and begins with") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  house.join(worker);
  const auto taken = house.take(wish());
  REQUIRE(taken.ok());
  house.finish(worker, house.ordered(worker), measured());
  REQUIRE(house.load(load_of("a", 0)).ok());
  auto orders = house.out.take<bus::CreateTask>();
  REQUIRE(orders.size() == 1);  // no second profile
  CHECK(orders[0].second.purpose == "run");
  CHECK(orders[0].second.predicted_step_ns == 3 * kNsPerMs);
  CHECK(orders[0].second.predicted_pieces_ns == std::vector<int64_t>{1 * kNsPerMs, 2 * kNsPerMs});
  SECTION("but not with stretches of a workload that has no steps") {
    auto imperative = load_of("b", 0);
    imperative.params["interface"] = "imperative";
    auto asked = wish();
    asked.load = imperative;
    REQUIRE(house.take(asked).ok());
    house.finish(worker, house.ordered(worker), measured());
    REQUIRE(house.load(imperative).ok());
    orders = house.out.take<bus::CreateTask>();
    REQUIRE(orders.size() == 1);
    CHECK(orders[0].second.predicted_step_ns == 0);
    CHECK(orders[0].second.predicted_pieces_ns.empty());
  }
}

TEST_CASE("a GPU task's context, which its profile has seen and its worker adds, is counted once") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  worker.device = "GPU-1";
  worker.context_bytes = 640LL << 20;
  house.join(worker);
  REQUIRE(house.take(wish()).ok());
  auto profile = measured();
  SECTION("with memory of its own") {
    profile.peak_bytes = {{"gpu", 1640LL << 20}, {"host", 1}};
    house.finish(worker, house.ordered(worker), profile);
    REQUIRE(house.load(load_of("a", 0)).ok());
    CHECK(house.out.take<bus::CreateTask>().at(0).second.memory_limit_bytes == 1250LL << 20);
  }
  SECTION("with less than what is given for it") {
    profile.peak_bytes = {{"gpu", 530LL << 20}, {"host", 1}};
    house.finish(worker, house.ordered(worker), profile);
    REQUIRE(house.load(load_of("a", 0)).ok());
    CHECK(house.out.take<bus::CreateTask>().at(0).second.memory_limit_bytes == 64LL << 20);
  }
}

TEST_CASE("a profile that came to no step says little of memory, and is no answer to a user") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  worker.memory_bytes = 1LL << 30;
  house.join(worker);
  REQUIRE(house.take(wish()).ok());
  auto none = measured();
  none.peak_bytes["host"] = 1LL << 20;
  none.steps = {};
  none.pieces.clear();
  none.step_ns.clear();
  house.finish(worker, house.ordered(worker), none);
  CHECK_FALSE(house.take(wish())->run.empty());
  house.finish(worker, house.ordered(worker), none);
  // Tasks get what one gets of which nothing is known: half of the largest worker's, where that is below the default.
  for (const char* name : {"a", "b"}) {
    REQUIRE(house.load(load_of(name, 0)).ok());
    CHECK(house.out.take<bus::CreateTask>().size() == 1);
  }
  REQUIRE(house.load(load_of("c", 0)).ok());
  CHECK(contains(house.reason("c"), "needs 512 MiB"));
}

TEST_CASE("a worker of an earlier version sends no profile: its counters count") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  house.join(worker);
  const auto taken = house.take(wish());
  REQUIRE(taken.ok());
  const std::string run = house.ordered(worker);
  auto& task = worker.tasks[run];
  task.state = "STOPPED";
  task.verdict.kind = "finished";
  task.counters.steps = 4;
  task.counters.step_ns = 8 * kNsPerMs;
  task.counters.peak_memory_bytes = 500LL << 20;
  house.report(worker);
  const auto done = house.reply_of(house.follow(*taken));
  REQUIRE(done.ok());
  REQUIRE(done->profiles.size() == 1);
  CHECK(done->profiles[0].steps.p50_ns == 2 * kNsPerMs);
  CHECK(done->profiles[0].pieces.empty());
  CHECK(done->profiles[0].peak_bytes.at("host") == 500LL << 20);
  CHECK(contains(done->profiles[0].ended, "earlier version"));
}

TEST_CASE("a worker's profile that makes no sense is not believed") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  house.join(worker);
  const auto taken = house.take(wish());
  REQUIRE(taken.ok());
  auto lie = measured();
  SECTION("memory") {
    lie.peak_bytes["host"] = -1;
  }
  SECTION("order") {
    lie.steps.p50_ns = INT64_MAX;
  }
  SECTION("nothing of memory") {
    lie.peak_bytes.clear();
  }
  SECTION("durations") {
    lie.step_ns = {-1};
  }
  SECTION("size") {
    lie.pieces.resize(65);
  }
  house.finish(worker, house.ordered(worker), lie);
  const auto done = house.reply_of(house.follow(*taken));
  REQUIRE(done.ok());
  CHECK(done->state == "done");
  CHECK(done->profiles.at(0).peak_bytes.at("host") == 0);
}

TEST_CASE("a device without a trainer takes the profile; a worker, device or stage can be named") {
  ProfileHouse house;
  FakeWorker busy("a", 0), idle("b");
  house.join(busy);
  house.join(idle);
  const auto anywhere = house.take(wish());
  REQUIRE(anywhere.ok());
  CHECK(anywhere->worker == "b");
  auto named = wish();
  named.load.params["x"] = "1";
  named.worker = "a";
  CHECK(house.take(named)->worker == "a");
  auto stage = wish();
  stage.load.params["x"] = "2";
  stage.load.stage = 0;
  const auto second = house.take(stage);
  REQUIRE_FALSE(second.ok());  // one at a time there
  CHECK(second.error().code == Code::kExhausted);
  CHECK(contains(second.error().message, "another profile is being taken on a"));
  stage.load.stage = 9;
  CHECK(house.take(stage).error().code == Code::kInvalidArgument);
  named.worker = "c";
  CHECK(house.take(named).error().code == Code::kNotFound);
  CHECK(contains(house.take(named).error().message, "up: a, b"));
  named.worker.clear();
  named.device = "cpu-7";
  CHECK(house.take(named).error().code == Code::kNotFound);
}

TEST_CASE("two hosts of one name are two workers, each named in full; one alone by hostname and device, too") {
  ProfileHouse house;
  FakeWorker one("node-0000aaaa:cpu-0"), other("node-0000bbbb:cpu-0");
  one.host = other.host = "node";
  one.device = other.device = "cpu-0";
  house.join(one);
  auto named = wish();
  named.worker = "node:cpu-0";
  CHECK(house.take(named)->worker == one.name);
  house.join(other);
  named.load.params["x"] = "1";
  const auto either = house.take(named);
  REQUIRE_FALSE(either.ok());
  CHECK(either.error().code == Code::kInvalidArgument);
  CHECK(contains(either.error().message, one.name + ", " + other.name));
  named.worker = other.name;
  CHECK(house.take(named)->worker == other.name);
}

TEST_CASE("no worker, a worker that is lost, no room: each is one clear line") {
  ProfileHouse house;
  CHECK(house.take(wish()).error().code == Code::kUnavailable);
  FakeWorker worker("w");
  house.join(worker);
  auto large = wish();
  large.load.memory_bytes = 9LL << 30;
  CHECK(house.take(large).error().code == Code::kExhausted);
  CHECK(contains(house.take(large).error().message, "needs 9216 MiB, w has 8192 MiB free"));
  house.pass(7);
  auto named = wish();
  named.worker = "w";
  CHECK(house.take(named).error().code == Code::kUnavailable);
  CHECK(contains(house.take(named).error().message, "w is lost"));
}

TEST_CASE("a profile that fails says how, to the one who follows it") {
  ProfileHouse house;
  FakeWorker worker("w");
  house.join(worker);
  const auto taken = house.take(wish());
  REQUIRE(taken.ok());
  const Ticket follower = house.follow(*taken);
  const std::string run = house.ordered(worker);
  SECTION("of itself") {
    worker.tasks[run].state = "STOPPED";
    worker.tasks[run].verdict.kind = "crashed";
    worker.tasks[run].verdict.signal = 11;
    worker.tasks[run].verdict.reason = "killed by signal 11";
    house.report(worker);
    const auto failed = house.reply_of(follower);
    REQUIRE(failed.ok());
    CHECK(failed->state == "failed");
    CHECK(failed->verdict.kind == "crashed");
    CHECK(failed->reason == "killed by signal 11");
    CHECK(house.reply_of(house.follow(*failed))->state == "failed");  // told again to whoever has missed it
  }
  SECTION("its worker is lost") {
    house.pass(8);
    Ticket last = follower;
    while (house.reply_of(last)->state != "failed") last = house.follow(*house.reply_of(last));
    CHECK(house.reply_of(last)->verdict.kind == "lost");
  }
  CHECK(house.list()->profiles.empty());
}

TEST_CASE("a follower hears something every two seconds, and a run that nobody follows is stopped") {
  ProfileHouse house;
  FakeWorker worker("w");
  house.join(worker);
  auto seen = house.take(wish());
  REQUIRE(seen.ok());
  house.ordered(worker);
  for (int n = 0; n < 20; ++n) {
    const Ticket follower = house.follow(*seen);
    for (int ticks = 0; ticks < 3 && !house.answered(follower); ++ticks) house.pass(1, {&worker});
    REQUIRE(house.answered(follower));
    seen = house.reply_of(follower);
    REQUIRE(seen.ok());
    CHECK(seen->state == "running");
  }
  house.pass(9, {&worker});
  CHECK_FALSE(worker.tasks.empty());
  house.pass(4, {&worker});
  CHECK(worker.tasks.empty());  // its plan does not name it any more
  CHECK(house.reply_of(house.follow(*seen))->state == "failed");
  CHECK(contains(house.reply_of(house.follow(*seen))->reason, "nobody follows it"));
}

TEST_CASE("a profile that its user gives up is stopped at once, but not under a task that waits for it") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  house.join(worker);
  const auto taken = house.take(wish());
  REQUIRE(taken.ok());
  const std::string run = house.ordered(worker);
  SECTION("nobody else wants it") {
    house.core->stop_profile(++house.tickets, run);
    CHECK(house.reply_of(house.tickets)->state == "failed");
    const auto plans = house.out.take<bus::WorkerPlan>();
    REQUIRE(plans.size() == 1);
    CHECK(plans[0].second.orders.empty());
  }
  SECTION("a task waits for it") {
    REQUIRE(house.load(load_of("a", 0)).ok());
    CHECK(house.reason("a") == "being profiled on w");
    house.core->stop_profile(++house.tickets, run);
    CHECK(house.reply_of(house.tickets)->state == "starting");
    house.pass(15, {&worker});
    CHECK(house.reason("a") == "being profiled on w");
    house.finish(worker, run, measured());
    house.settle(worker);
    CHECK(house.state("a") == "PAUSED");
  }
  SECTION("there is none") {
    house.core->stop_profile(++house.tickets, "nothing");
    CHECK(house.reply_of(house.tickets).error().code == Code::kNotFound);
    house.core->follow_profile(++house.tickets, {"nothing", "", 0});
    CHECK(house.reply_of(house.tickets).error().code == Code::kNotFound);
  }
}

TEST_CASE("a profile that was stopped before it was initialised is none, and is taken again") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a", 0)).ok());
  const std::string run = house.ordered(worker);
  House::end(worker, run, "stopped");
  house.report(worker);
  CHECK(house.list()->profiles.empty());
  CHECK(house.state("a") == "SUBMITTED");
  worker.tasks.clear();
  house.pass(4, {&worker});
  house.settle(worker);
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("a profile that a drain, or the end of its worker, has cut short is none, and is taken again") {
  const bool drained = GENERATE(true, false);
  ProfileHouse house;
  FakeWorker worker("h:w", 0);
  house.join(worker);
  REQUIRE(house.load(load_of("a", 0)).ok());
  const std::string run = house.ordered(worker);
  if (drained) house.core->drain(++house.tickets, {"host:h", false});
  auto& task = worker.tasks[run];
  task.state = "STOPPED";
  task.verdict.kind = "stopped";
  task.init_ns = 1;
  task.profile = {measured()};
  task.profile[0].steps.count = 1;
  auto report = house.report_of(worker);
  report.ending = !drained;
  CHECK(house.send(worker, report).ok());
  CHECK(house.list()->profiles.empty());
  CHECK(house.state("a") == "SUBMITTED");
  house.core->uncordon(++house.tickets, "host:h");
  worker.tasks.clear();
  house.pass(4, {&worker});
  house.settle(worker);
  CHECK(house.state("a") == "PAUSED");
  CHECK(house.list()->profiles.at(0).steps.count == 10);
}

TEST_CASE("a profile keeps away from a GPU that another process uses, and returns when it has gone") {
  ProfileHouse house;
  FakeWorker worker("w");
  house.join(worker);
  auto load = load_of("a", -1);
  load.when_idle = true;
  REQUIRE(house.load(load).ok());
  const std::string run = house.ordered(worker);
  worker.other_process = true;
  const auto plan = house.renewal(worker);
  const auto named = [&](const bus::WorkerPlan& one) {
    return std::any_of(one.orders.begin(), one.orders.end(), [&](const auto& order) { return order.task == run; });
  };
  CHECK_FALSE(named(plan));  // so the worker stops it
  worker.tasks.clear();
  house.pass(300, {&worker});  // no failure, however long it takes
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(house.task("a").state.why == "other_process");
  CHECK(house.list()->profiles.empty());
  CHECK(house.out.take<bus::CreateTask>().empty());
  worker.other_process = false;
  house.pass(2, {&worker});
  house.settle(worker);
  CHECK(house.state("a") == "PAUSED");
}

TEST_CASE("a profile that failed where the task would not run is taken again where it may") {
  ProfileHouse house;
  FakeWorker idle("cpu-1"), trained("cpu-0", 0);
  house.join(idle);
  house.join(trained);
  REQUIRE(house.load(load_of("a", 0)).ok());
  CHECK(house.reason("a") == "being profiled on cpu-1");
  const std::string run = house.ordered(idle);
  House::end(idle, run, "failed");
  idle.tasks[run].verdict.reason = "its data is not on this host";
  house.report(idle);
  CHECK(house.state("a") == "SUBMITTED");
  house.pass(1);
  const std::string again = house.ordered(trained);
  CHECK(house.reason("a") == "being profiled on cpu-0");
  SECTION("and is what counts") {
    house.finish(trained, again, measured());
    house.settle(trained);
    CHECK(house.state("a") == "PAUSED");
  }
  SECTION("what fails there, too, ends it") {
    House::end(trained, again, "failed");
    trained.tasks[again].verdict.reason = "no data";
    house.report(trained);
    CHECK(house.verdict("a").reason == "while being profiled on cpu-0: no data");
  }
}

TEST_CASE("a profile that failed elsewhere does not end a task whose trainer is not there yet") {
  ProfileHouse house;
  FakeWorker idle("cpu-1");
  house.join(idle);
  REQUIRE(house.load(load_of("a", 0)).ok());
  const std::string run = house.ordered(idle);
  House::end(idle, run, "crashed");
  house.report(idle);
  house.pass(5, {&idle});
  CHECK(house.state("a") == "SUBMITTED");
  CHECK(contains(house.reason("a"), "waiting for a trainer"));
  CHECK(house.out.take<bus::CreateTask>().empty());
}

TEST_CASE("a task without a profile is placed at once, and goes by none") {
  ProfileHouse house;
  FakeWorker worker("w", 0);
  house.join(worker);
  take_one(house, worker);
  auto load = load_of("a", 0);
  load.no_profile = true;
  REQUIRE(house.load(load).ok());
  const auto orders = house.out.take<bus::CreateTask>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].second.purpose == "run");
  CHECK(orders[0].second.predicted_step_ns == 0);
  CHECK(orders[0].second.predicted_pieces_ns.empty());
}

TEST_CASE("a load that is only planned says whether it fits, where, and what to expect") {
  ProfileHouse house;
  FakeWorker first("w0", 0), second("w1", 1);
  second.memory_bytes = 64LL << 20;
  house.join(first);
  house.join(second);
  const auto plan = [&](const bus::Load& load) {
    auto with_hash = load;
    with_hash.sha256 = sha256_hex(plugin_bytes());
    house.core->plan_load(++house.tickets, with_hash);
    auto answer = house.answer_of(house.tickets);
    REQUIRE(answer.ok());
    return std::get<bus::LoadPlan>(*answer);
  };
  auto any = plan(load_of("a"));
  CHECK(any.fits);
  CHECK(any.name == "a");
  CHECK(any.worker == "w0");
  CHECK(any.step_ns == 0);
  REQUIRE(any.stages.size() == 2);
  CHECK(any.stages[0].fits);
  CHECK(contains(any.stages[0].reason, "no profile yet"));
  CHECK_FALSE(any.stages[1].fits);
  CHECK(contains(any.stages[1].reason, "the largest matching worker, w1, has 64 MiB"));

  take_one(house, first);
  any = plan(load_of("a"));
  CHECK(any.step_ns == 2 * kNsPerMs);
  CHECK(any.profile_steps == 10);
  CHECK(any.stages.at(0).reason == "its bubbles have not been measured yet");

  // Half of an iteration is bubbles: 1800 s an hour of 2 ms each.
  auto report = house.report_of(first);
  bus::TrainingIteration iteration;
  iteration.job = "gpt";
  iteration.rank = 0;
  for (uint64_t n = 1; n < 40; ++n) {
    iteration.iteration = n;
    iteration.begin_ns = static_cast<int64_t>(n) * 100 * kNsPerMs;
    iteration.end_ns = iteration.begin_ns + 100 * kNsPerMs;
    iteration.bubble_ns = 50 * kNsPerMs;
    report.iterations.push_back(iteration);
  }
  REQUIRE(house.send(first, report).ok());
  any = plan(load_of("a", 0));
  REQUIRE(any.stages.size() == 1);
  CHECK(any.stages[0].bubble_share_pct == 50);
  CHECK(any.stages[0].steps_per_hour == 900'000);

  auto wrong = load_of("a", 7);
  wrong.sha256 = sha256_hex(plugin_bytes());
  house.core->plan_load(++house.tickets, wrong);
  CHECK_FALSE(house.answer_of(house.tickets).ok());
  CHECK(house.tasks().empty());
  CHECK(house.out.take<bus::CreateTask>().empty());
}
