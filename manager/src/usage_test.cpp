// What side tasks have had, by the hour.
#include "usage.hpp"

#include "test_support.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kHourMs = 3600 * 1000, kHourNs = 3600 * kNsPerSec;
constexpr int64_t kDay = 24 * 20000;  // an hour's number at which a day begins

bus::TaskInfo task_of(const std::string& name, const std::string& user) {
  bus::TaskInfo task;
  task.state.task = name;
  task.load.user = user;
  return task;
}

bus::TaskCounters counters(int64_t harvested_ns, int64_t step_ns, uint64_t steps) {
  bus::TaskCounters counters;
  counters.harvested_ns = harvested_ns;
  counters.step_ns = step_ns;
  counters.steps = steps;
  return counters;
}

bus::WorkerReport iteration(const std::string& job, int64_t length_ns, int64_t bubble_ns, bool holdout) {
  bus::TrainingIteration one;
  one.job = job;
  one.end_ns = length_ns;
  one.bubble_ns = bubble_ns;
  one.holdout = holdout;
  one.harvested = !holdout;
  bus::WorkerReport report;
  report.iterations = {one};
  return report;
}

bus::UsageReply sum_of(StateStore& store, const std::string& by) {
  UsageSum sum(by, 0);
  while (!sum.done()) REQUIRE(store.go_on(sum).ok());
  return sum.reply();
}

struct Fixture {
  TempDir dir;
  FakeClock clock;
  DiskTrouble trouble{clock};
  Result<std::unique_ptr<StateStore>> opened = StateStore::open(dir.path / "state.sqlite");
  std::unique_ptr<StateStore> store = std::move(*opened);
  bus::JobMeasures measured;
  Usage usage{*store, clock, trouble, [this](const std::string& job) {
                auto measures = measured;
                measures.job = job;
                return std::vector<bus::JobMeasures>{measures};
              }};

  std::map<std::string, bus::UsageRow> by(const std::string& what, int64_t since_unix_ms = 0) {
    clock.tick(kNsPerSec);
    REQUIRE(usage.ask(1, {since_unix_ms, what}).ok());
    std::optional<Usage::Answer> answer;
    for (int slices = 0; !answer; ++slices) {
      REQUIRE(slices < 10'000);
      answer = usage.go_on();
    }
    usage.answered();
    REQUIRE(answer->tickets.size() == 1);
    REQUIRE(answer->sum.ok());
    std::map<std::string, bus::UsageRow> rows;
    for (const auto& row : answer->sum->reply().rows) rows[row.name] = row;
    return rows;
  }
};

TEST_CASE_METHOD(Fixture, "usage: a training's cost is shared by what each side task harvested") {
  measured.measured = true;
  measured.time_increase_pct = 25;
  measured.time_increase_ci95_low_pct = 0;
  measured.time_increase_ci95_high_pct = 100;
  const int64_t now_ms = kDay * kHourMs;
  usage.add(task_of("a", "ann"), "gpt", counters(0, 0, 0), counters(300, 400, 3), now_ms);
  usage.add(task_of("b", "bob"), "gpt", counters(50, 60, 1), counters(150, 170, 2), now_ms);
  usage.add(iteration("gpt", 1000, 400, false), now_ms);
  usage.add(iteration("gpt", 800, 400, true), now_ms);

  const auto users = by("user");
  CHECK(users.at("ann").harvested_ns == 300);
  CHECK(users.at("ann").steps == 3);
  CHECK(users.at("bob").step_ns == 110);
  // Of 1000 with side tasks, 200 would not have been without: three quarters are ann's.
  CHECK(users.at("ann").cost_ns == 150);
  CHECK(users.at("bob").cost_ns == 50);
  CHECK(users.at("ann").cost_low_ns == 0);
  CHECK(users.at("ann").cost_high_ns == 375);
  const auto jobs = by("job");
  CHECK(jobs.at("gpt").gpu_ns == 1800);
  CHECK(jobs.at("gpt").bubble_ns == 800);
  CHECK(jobs.at("gpt").tasks == 2);
  CHECK(jobs.at("gpt").cost_ns == 200);
  CHECK(by("task").at("b").harvested_ns == 100);
}

TEST_CASE_METHOD(Fixture, "usage: what one report has of a step and the next of its harvest is not lost") {
  const int64_t now_ms = kDay * kHourMs;
  const auto task = task_of("a", "ann");
  usage.add(task, "gpt", counters(0, 0, 0), counters(0, 400, 1), now_ms);
  usage.add(task, "gpt", counters(0, 400, 1), counters(300, 400, 1), now_ms);
  usage.add(task, "gpt", counters(300, 400, 1), counters(9000, 500, 2), now_ms);  // more than there can be
  CHECK(by("task").at("a").harvested_ns == 500);
  CHECK(by("task").at("a").step_ns == 500);
  CHECK(by("task").at("a").steps == 2);
}

TEST_CASE_METHOD(Fixture, "usage: added up by account, one of which has several users, and a user several of them") {
  const auto charged = [](const std::string& name, const std::string& user, const std::string& account) {
    auto task = task_of(name, user);
    task.load.account = account;
    return task;
  };
  const int64_t now_ms = kDay * kHourMs;
  usage.add(charged("a", "ann", "vision"), "gpt", counters(0, 0, 0), counters(300, 400, 3), now_ms);
  usage.add(charged("b", "bob", "vision"), "gpt", counters(0, 0, 0), counters(100, 100, 1), now_ms);
  usage.add(charged("a", "ann", "text"), "gpt", counters(0, 0, 0), counters(50, 60, 2), now_ms);
  usage.add(task_of("c", "ann"), "gpt", counters(0, 0, 0), counters(7, 8, 1), now_ms);  // of an earlier version
  const auto accounts = by("account");
  REQUIRE(accounts.size() == 3);
  CHECK(accounts.at("vision").harvested_ns == 400);
  CHECK(accounts.at("vision").tasks == 2);
  CHECK(accounts.at("text").harvested_ns == 50);
  CHECK(accounts.at("ann").harvested_ns == 7);
  CHECK(by("user").at("ann").harvested_ns == 357);
  // Days are made of hours without mixing accounts up.
  clock.tick(10 * 24 * kHourNs);
  usage.add(charged("d", "ann", "late"), "gpt", counters(0, 0, 0), counters(1, 1, 1), now_ms + 10 * 24 * kHourMs);
  CHECK(by("account").at("vision").harvested_ns == 400);
  CHECK(by("account").at("text").harvested_ns == 50);
}

TEST_CASE_METHOD(Fixture, "usage: what accounts have had lately is known again after a restart, by its age") {
  constexpr int64_t kHalfLife = 3600 * kNsPerSec;
  const auto measures = [](const std::string&) { return std::vector<bus::JobMeasures>{}; };
  const int64_t now_ms = kDay * kHourMs;
  auto task = task_of("a", "ann");
  task.load.account = "vision";
  {
    Usage before(*store, clock, trouble, measures, kHalfLife);
    before.add(task, "gpt", counters(0, 0, 0), counters(100 * kNsPerSec, 100 * kNsPerSec, 1), now_ms);
    CHECK(before.turns().had.at("vision") == Approx(100));
    before.placed(task.load);
    CHECK(before.turns().had.at("vision") == Approx(160));
    clock.tick(kHalfLife);
    CHECK(before.turns().had.at("vision") == Approx(80));
    before.flush();
  }
  Usage after(*store, clock, trouble, measures, kHalfLife);
  REQUIRE(after.restore(now_ms + 2 * kHourMs).ok());
  CHECK(after.turns().had.at("vision") == Approx(25));
  CHECK(after.turns().of_a_task > 0);
  CHECK(usage.turns().of_a_task == 0);  // without a half-life accounts are not told apart
}

TEST_CASE_METHOD(Fixture, "usage: what is not measured yet is told as that, and costs nothing") {
  usage.add(task_of("a", "ann"), "gpt", counters(0, 0, 0), counters(300, 400, 3), kDay * kHourMs);
  usage.add(iteration("gpt", 1000, 400, false), kDay * kHourMs);
  CHECK(by("job").at("gpt").unmeasured_ns == 1000);
  CHECK(by("user").at("ann").cost_ns == 0);
}

TEST_CASE_METHOD(Fixture, "usage: a day that is days ago is one row, and nothing is counted twice or lost") {
  for (int64_t hour = 0; hour < 24 * 10; ++hour) {
    const int64_t now_ms = (kDay + hour) * kHourMs;
    usage.add(task_of("a", "ann"), "gpt", counters(0, 0, 0), counters(1, 2, 1), now_ms);
    usage.add(iteration("gpt", 10, 4, false), now_ms);
    clock.tick(kHourNs);
    usage.save();
  }
  const auto hours = store->account_usage(0);
  REQUIRE(hours.ok());
  CHECK(hours->size() < 7 + 24 * 4);
  CHECK(by("user").at("ann").harvested_ns == 240);
  CHECK(by("job").at("gpt").gpu_ns == 2400);
  // From the second day on, and from an hour within the last three days on.
  CHECK(by("user", (kDay + 24) * kHourMs).at("ann").harvested_ns == 216);
  CHECK(by("user", (kDay + 230) * kHourMs).at("ann").harvested_ns == 10);
  CHECK(by("user", (kDay + 24) * kHourMs).at("ann").steps == 216);
}

TEST_CASE_METHOD(Fixture, "usage: counters that run backwards, and hours out of order, do no harm") {
  usage.add(task_of("a", "ann"), "", counters(500, 500, 50), counters(100, 100, 10), kDay * kHourMs);
  usage.add(task_of("a", "ann"), "", counters(0, 0, 0), counters(900, 100, 1), kDay * kHourMs);  // more than its steps
  usage.add(task_of("a", "ann"), "", counters(-5, -5, 0), counters(10, 10, 1), (kDay - 24 * 30) * kHourMs);
  auto backwards = iteration("gpt", 0, 50, false);
  backwards.iterations[0].begin_ns = 70;
  usage.add(backwards, kDay * kHourMs);
  CHECK(by("user").at("ann").harvested_ns == 110);
  CHECK(by("job").at("gpt").gpu_ns == 0);
  CHECK(by("job").at("gpt").bubble_ns == 0);
  CHECK_FALSE(usage.ask(1, {0, "colour"}).ok());
}

TEST_CASE_METHOD(Fixture, "usage: many tasks are saved in parts, each once, and what comes meanwhile is not lost") {
  constexpr int kTasks = 1000;
  const auto add = [&](int from, int to) {
    for (int n = from; n < to; ++n) {
      usage.add(task_of("t-" + std::to_string(n), "ann"), "gpt", {}, counters(kNsPerMs, 2 * kNsPerMs, 1), kHourMs);
    }
  };
  const auto on_disk = [&] {
    const auto rows = sum_of(*store, "user").rows;
    return rows.empty() ? uint64_t{0} : rows[0].steps;
  };
  add(0, kTasks);
  usage.add(iteration("gpt", kNsPerSec, kNsPerMs, false), kHourMs);
  usage.save();
  CHECK(on_disk() > 0);
  CHECK(on_disk() < kTasks / 2);
  add(0, kTasks);
  for (int n = 0; n < 20; ++n) usage.save();
  CHECK(on_disk() >= kTasks);
  CHECK(on_disk() < 2 * kTasks);  // those that had been saved wait for the next minute
  clock.tick(60 * kNsPerSec);
  for (int n = 0; n < 20; ++n) usage.save();
  CHECK(on_disk() == 2 * kTasks);
  CHECK(by("user")["ann"].steps == 2 * kTasks);
  CHECK(by("job")["gpt"].gpu_ns == kNsPerSec);
}

TEST_CASE_METHOD(Fixture, "usage: a step of the wall clock deletes nothing, and old days go by time alone") {
  const int64_t now_ms = (kDay + 24 * 500) * kHourMs;
  const auto years_later_ms = [&](int64_t years) { return now_ms + years * 366 * 24 * kHourMs; };
  const auto add = [&](const char* task, int64_t unix_ms) {
    usage.add(task_of(task, "ann"), "gpt", {}, counters(1, 1, 1), unix_ms);
    clock.tick(61 * kNsPerSec);
    usage.save();
  };
  REQUIRE(store->add_usage({{{kDay + 24 * 120, "old", "ann", "gpt", ""}, {1, 1, 1, 1}}}, {}).ok());  // 380 days
  add("new", now_ms);
  add("stepped", years_later_ms(3));
  add("stepped", years_later_ms(3));
  add("back", now_ms);
  CHECK(by("task").size() == 4);
  {  // A manager that is started under a wrong clock has no other time but what is kept.
    Usage again(*store, clock, trouble, [](const std::string&) { return std::vector<bus::JobMeasures>{}; });
    again.add(task_of("again", "ann"), "gpt", {}, counters(1, 1, 1), years_later_ms(2));
    again.save();
  }
  CHECK(by("task").count("old") == 1);
  // Three weeks pass, day by day.
  for (int day = 1; day <= 21; ++day) {
    clock.tick(24 * kHourNs);
    add("new", now_ms + day * 24 * kHourMs);
  }
  CHECK(by("task").count("old") == 0);
  CHECK(by("task").count("new") == 1);
}

TEST_CASE_METHOD(Fixture, "usage: a wall clock that is behind at the start keeps hours and old days no longer") {
  const int64_t now_ms = (kDay + 24 * 500) * kHourMs;
  const auto row = [&](const char* task, int64_t hours_ago) {
    TaskUsage one;
    one.steps = one.step_ns = one.harvested_ns = 1;
    REQUIRE(store->add_usage({{{now_ms / kHourMs - hours_ago, task, "ann", "gpt", ""}, one}}, {}).ok());
  };
  row("old", 24 * 396 + 23);
  for (int64_t hours_ago = 1; hours_ago <= 71; ++hours_ago) row("new", hours_ago);
  REQUIRE(usage.restore(kHourMs).ok());  // 1970
  usage.save();
  for (int hour = 0; hour < 48; ++hour) {
    clock.tick(kHourNs);
    usage.add(task_of("late", "ann"), "gpt", {}, counters(1, 1, 1), now_ms + hour * kHourMs);
    usage.save();
  }
  CHECK(by("task").count("old") == 0);
  CHECK(by("task").at("new").steps == 71);
  const auto hours = store->account_usage(0);
  REQUIRE(hours.ok());
  CHECK(hours->size() < 71 + 48 - 24);
}

TEST_CASE_METHOD(Fixture, "usage: a year of many tasks is added up in slices, between which others are served") {
  std::map<TaskUsageKey, TaskUsage> rows;
  TaskUsage one;
  one.steps = one.step_ns = one.harvested_ns = 1;
  for (int64_t day = 0; day < 100; ++day) {
    for (int n = 0; n < 300; ++n)
      rows[{kDay + 24 * day, "t-" + std::to_string(day * 200 + n), "u" + std::to_string(n % 3), "gpt", ""}] += one;
  }
  REQUIRE(store->add_usage(rows, {{kDay, "gpt", 600, 300, 300, 0, 600, 0}}).ok());
  REQUIRE(usage.ask(1, {0, "user"}).ok());
  REQUIRE(usage.ask(2, {kHourMs / 2, "user"}).ok());  // the same hour: they share the work
  REQUIRE(usage.ask(3, {0, "task"}).ok());
  std::vector<Ticket> order;
  std::vector<size_t> slices{0};
  bus::UsageReply users;
  while (usage.asked()) {
    ++slices.back();
    auto answer = usage.go_on();
    if (!answer) continue;
    CHECK_FALSE(usage.asked());  // the next sum waits until this one is gone
    usage.answered();
    REQUIRE(answer->sum.ok());
    order.insert(order.end(), answer->tickets.begin(), answer->tickets.end());
    if (order.front() == 1 && order.size() == 2) users = answer->sum->reply();
    slices.push_back(0);
  }
  CHECK(order == std::vector<Ticket>{1, 2, 3});
  CHECK(slices[0] > 8);
  CHECK(slices[1] > 8);
  REQUIRE(users.rows.size() == 3);
  uint64_t tasks = 0;
  for (const auto& row : users.rows) {
    CHECK(row.steps == 10'000);
    CHECK(row.cost_ns == 100);  // a third of the first day's
    tasks += row.tasks;
  }
  // Of 300 a day 100 were there the day before, of another user each.
  CHECK(tasks == 30'000);
}

TEST_CASE("usage: what was added up is put in order by another thread than the core's") {
  House house;
  house.out.held = true;
  house.core->usage(++house.tickets, {0, "user"});
  for (int n = 0; n < 100; ++n) house.core->go_on();
  CHECK(house.out.answers.count(house.tickets) == 0);
  CHECK(house.out.background.size() == 1);
  house.out.let_go();
  CHECK(house.answer_of(house.tickets).ok());
}

TEST_CASE_METHOD(Fixture, "usage: sums outlive the manager") {
  usage.add(task_of("a", "ann"), "gpt", counters(0, 0, 0), counters(300, 400, 3), kDay * kHourMs);
  usage.flush();
  store.reset();
  const auto again = StateStore::open(dir.path / "state.sqlite");
  REQUIRE(again.ok());
  const auto reply = sum_of(**again, "task");
  REQUIRE(reply.rows.size() == 1);
  CHECK(reply.rows[0].harvested_ns == 300);
  CHECK(reply.from_unix_ms == kDay * kHourMs);
}

}  // namespace
}  // namespace freeride::manager
