#include "render.hpp"

#include <catch2/catch.hpp>

#include "json.hpp"

using namespace freeride;  // NOLINT(google-build-using-namespace)
using Catch::Contains;

namespace {
bus::TaskInfo sample_task() {
  bus::TaskInfo info;
  info.state.task = "pagerank";
  info.state.plugin = "pagerank.so";
  info.state.sha256 = std::string(64, 'a');
  info.state.worker = "host:cpu-0";
  info.state.state = "RUNNING";
  info.state.stage = 0;
  info.state.counters.steps = 1000;
  info.state.counters.step_ns = 1'500'000'000;
  info.state.counters.metrics = {{"residual", 0.25}};
  info.load.params = {{"scale", "14"}};
  return info;
}
}  // namespace

TEST_CASE("an outcome names the verdict, where and why") {
  bus::TaskState task;
  CHECK(ctl::outcome(task).empty());
  task.paused_by_user = true;
  CHECK(ctl::outcome(task) == "paused by user");
  task.reason = "waiting for a trainer with stage 3";
  CHECK(ctl::outcome(task) == "waiting for a trainer with stage 3");
  task.verdict.kind = "crashed";
  task.verdict.signal = 11;
  task.verdict.transition = "RunNextStep";
  task.verdict.reason = "segmentation fault";
  CHECK(ctl::outcome(task) == "crashed (signal 11 in RunNextStep): segmentation fault");
}

TEST_CASE("why a task makes no step is the manager's sentence alone, in every view") {
  auto info = sample_task();
  info.state.counters.leases = 30;
  info.state.counters.skipped = 24;
  CHECK(ctl::outcome(info.state).empty());
  info.state.why = "step_too_long";
  info.state.reason = "its next step, 33 ms, does not fit the bubbles";
  CHECK(ctl::outcome(info.state) == info.state.reason);
  CHECK_THAT(ctl::list_tasks({info}, {}).text(), Contains(info.state.reason));
  CHECK_THAT(ctl::render_task(info), Contains("why                 " + info.state.reason));
  CHECK(ctl::render_task_line(info.state) == "pagerank: RUNNING (" + info.state.reason + ")\n");
  const auto json = ctl::to_json(bus::TaskReply{info})["task"]["state"];
  CHECK(json["why"] == "step_too_long");
  CHECK(json["reason"] == info.state.reason);
}

TEST_CASE("what a program's GPU work has met, and what passes without a lease, is in the view of the task") {
  auto info = sample_task();
  CHECK_THAT(ctl::render_task(info), !Contains("GPU work"));
  bus::ShimCounters shim;
  shim.processes = 1;
  shim.submissions = 12'000;
  shim.waits = 30;
  shim.waited_ns = 1'500'000'000;
  info.shim = {shim};
  CHECK_THAT(ctl::render_task(info), Contains("GPU work            12 000 submissions, 30 waited for a lease, 1.50 s"));
  CHECK_THAT(ctl::render_task(info), !Contains("not held") && !Contains("late") && !Contains("refused"));
  shim.unknown = {{"cuStrange\x1b", 3}};
  shim.export_tables = 2;
  shim.late = 4;
  shim.late_most_ns = 300'000;
  info.shim = {shim};
  CHECK_THAT(ctl::render_task(info), Contains("  not held          cuStrange? (3), tables of functions (2)\n"));
  CHECK_THAT(ctl::render_task(info), Contains("  late              after 4 leases, 300"));
}

TEST_CASE("a verdict's cause and evidence are in the view of the task and in JSON") {
  auto info = sample_task();
  CHECK_THAT(ctl::render_task(info), !Contains("cause") && !Contains("exit code") && !Contains("then"));
  bus::Verdict& verdict = info.state.verdict;
  verdict.kind = "failed";
  verdict.cause = "exit";
  verdict.reason = "its process ended by itself";
  verdict.exit_code = 3;
  verdict.evidence = {"its supervisor ended", "it was \x1b[2J late"};
  CHECK_THAT(ctl::render_task(info), Contains("verdict             failed: its process ended by itself\n"
                                              "cause               exit\n"
                                              "exit code           3\n"
                                              "then                its supervisor ended\n"
                                              "then                it was ?[2J late\n"));
  const auto json = ctl::to_json(bus::TaskReply{info})["task"]["state"]["verdict"];
  CHECK(json["cause"] == "exit");
  CHECK(json["exit_code"] == 3);
  CHECK(json["evidence"].size() == 2);
}

TEST_CASE("time increase is only shown when it is measured") {
  bus::JobMeasures job;
  CHECK(ctl::time_increase(job) == "not measured yet");
  job.measured = true;
  job.time_increase_pct = 0.12;
  job.time_increase_ci95_low_pct = -0.4;
  job.time_increase_ci95_high_pct = 0.64;
  CHECK(ctl::time_increase(job) == "+0.12 % (95 %: -0.40 % to +0.64 %)");
}

TEST_CASE("report says that a wide interval of the time increase says little") {
  bus::ReportReply report;
  report.jobs.resize(1);
  auto& job = report.jobs.front();
  job.measured = true;
  job.time_increase_ci95_low_pct = -0.4;
  job.time_increase_ci95_high_pct = 0.64;
  CHECK_THAT(ctl::render_report(report), !Contains("says little"));
  job.time_increase_ci95_low_pct = -72.16;
  job.time_increase_ci95_high_pct = 59.71;
  CHECK_THAT(ctl::render_report(report), Contains("so wide an interval says little; it narrows with time"));
  job.measured = false;
  CHECK_THAT(ctl::render_report(report), !Contains("says little"));
}

TEST_CASE("a job that is throttled says why") {
  bus::JobMeasures job;
  CHECK(ctl::throttled(job).empty());
  job.duty_pct = 55.6;
  job.expected_cost_pct = 0.81;
  job.budget_pct = 0.5;
  CHECK(ctl::throttled(job) ==
        " (throttled to 55.6 % of the iterations: in all of them side tasks would slow training by about 0.8 %, and "
        "the budget is 0.5 %)");
  job.budget_pct = -1;
  CHECK_THAT(ctl::throttled(job), Contains("more than they are worth"));
}

TEST_CASE("the budget that a job asks for is shown, and whether it counts") {
  bus::JobMeasures job;
  job.budget_pct = 1;
  CHECK(ctl::own_budget(job).empty());
  job.asked_budget_pct = job.budget_pct = 0.3;
  CHECK(ctl::own_budget(job) == "budget 0.3 %, as the job asks");
  bus::StatusReply status;
  status.jobs = {job};
  CHECK_THAT(ctl::render_status(status), Contains("budget 0.3 %, as the job asks"));
  bus::ReportReply report;
  report.jobs = {job};
  CHECK_THAT(ctl::render_report(report), Contains("budget 0.3 %, as the job asks"));
  job.asked_budget_pct = 5;
  job.budget_pct = 1;
  CHECK(ctl::own_budget(job) == "budget 1 % (the job asks for 5 %, which is more than the manager's)");
}

TEST_CASE("what holding waits for other hosts costs a job is shown where it is measured") {
  bus::JobMeasures job;
  job.job = "gpt";
  CHECK(ctl::cost_of_holds(job).empty());
  job.held = {16, -0.243, -0.381, -0.105};
  CHECK(ctl::cost_of_holds(job) ==
        "waits for other hosts are held: iterations -0.24 % (95 %: -0.38 % to -0.10 %), against plain ones");
  job.held_with_leases = {16, 0.067, -0.21, 0.344};
  bus::ReportReply report;
  report.jobs = {job};
  CHECK_THAT(
      ctl::render_report(report),
      Contains("job gpt: waits for other hosts are held: iterations -0.24 % (95 %: -0.38 % to -0.10 %), with leases "
               "+0.07 % (95 %: -0.21 % to +0.34 %), against plain ones"));
}

TEST_CASE("a drained worker is up, and is said to be drained") {
  bus::StatusReply status;
  status.workers.resize(2);
  for (auto& worker : status.workers) worker.state.state = "up";
  CHECK_THAT(ctl::render_status(status), Contains("2 up of 2") && !Contains("drained"));
  status.workers[1].drained = true;
  CHECK_THAT(ctl::render_status(status), Contains("2 up of 2, 1 drained"));
  bus::WorkersReply workers;
  workers.workers = status.workers;
  const auto text = ctl::list_workers(workers).text();
  CHECK_THAT(text, Contains("up, drained"));
  CHECK(text.find("drained") == text.rfind("drained"));
}

TEST_CASE("empty lists say what to do") {
  CHECK_THAT(ctl::list_tasks({}, {}).text(), Contains("freeride-ctl load"));
  CHECK_THAT(ctl::list_workers({}).text(), Contains("freeride-worker"));
  CHECK_THAT(ctl::list_plugins({}, {}).text(), Contains("drop folder"));
  CHECK_THAT(ctl::render_report({}), Contains("no training job"));
  CHECK_THAT(ctl::render_status({}), Contains("none"));
}

TEST_CASE("tasks that have ended are apart from those that live") {
  auto live = sample_task(), old = sample_task(), older = sample_task();
  old.state.task = "old";
  older.state.task = "older";
  old.state.verdict.kind = older.state.verdict.kind = "finished";
  old.ended_unix_ms = 9'000;
  older.ended_unix_ms = 1'000;
  const std::vector<bus::TaskInfo> all{older, old, live};
  const auto few = ctl::list_tasks(all, {false, 0, 10'000}).text();
  CHECK_THAT(few, Contains("pagerank") && !Contains("older") && Contains("2 ended: freeride-ctl tasks --all"));
  const auto since = ctl::list_tasks(all, {true, 5'000, 10'000}).text();
  CHECK_THAT(since, Contains("old ") && !Contains("older") && Contains("1.00 s ago") && Contains("1 ended earlier"));
  const auto text = ctl::list_tasks(all, {true, 0, 10'000}).text();
  CHECK(text.find("pagerank") < text.find("older"));  // live ones first
  CHECK_THAT(text, !Contains("--all"));
  CHECK_THAT(ctl::list_tasks({old}, {}).text(), Contains("no side task lives"));
}

TEST_CASE("how long the first time increase takes is said while it is not there") {
  bus::JobMeasures job;
  CHECK(ctl::time_increase(job) == "not measured yet");
  job.measured_in_ms = 90'000;
  CHECK(ctl::time_increase(job) == "not measured yet, about 90.0 s until the first measurement");
  job.measured = true;
  CHECK_THAT(ctl::time_increase(job), !Contains("until"));
}

TEST_CASE("plugins that can be loaded by name: a drop folder's goes before a shipped one") {
  bus::PluginsReply reply;
  bus::PluginState dropped;
  dropped.name = "image.so";
  dropped.state = "available";
  reply.plugins.push_back(dropped);
  const auto csv = ctl::list_plugins(reply, {"image.so", "sgd.so"}).table.csv();
  CHECK_THAT(csv, Contains("image.so,drop folder") && !Contains("image.so,FreeRide") && Contains("sgd.so,FreeRide"));
}

TEST_CASE("tasks and a task") {
  auto info = sample_task();
  CHECK_THAT(ctl::list_tasks({info}, {}).text(),
             Contains("pagerank") && Contains("RUNNING") && Contains("1 000") && Contains("1.50 ms"));
  info.log_tail = "first line\nsecond \x1b[2J line";
  const auto text = ctl::render_task(info);
  CHECK_THAT(text, Contains("first line\nsecond ?[2J line\n") && Contains("scale") && Contains("residual") &&
                       Contains("0.25"));
  CHECK(ctl::render_task_line(info.state) == "pagerank: RUNNING\n");
}

TEST_CASE("one plugin on many workers is one row") {
  bus::PluginsReply reply;
  for (const char* worker : {"gpu1:cpu-0", "gpu1:cpu-1", "gpu2:cpu-0"}) {
    bus::PluginState plugin;
    plugin.name = "image.so";
    plugin.worker = worker;
    plugin.state = "added";
    plugin.sha256 = std::string(64, 'b');
    plugin.size_bytes = 2048;
    reply.plugins.push_back(plugin);
  }
  const auto text = ctl::list_plugins(reply, {}).text();
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK_THAT(text, Contains("gpu1, gpu2"));
  CHECK_THAT(text, Contains("2.0 KiB") && Contains("3"));
}

TEST_CASE("report shows measures per stage") {
  bus::ReportReply reply;
  bus::JobMeasures job;
  job.job = "gpt";
  job.stages = 2;
  job.iteration_ms = 512;
  job.stage_bubble_share_pct = {{"0", 21.5}, {"1", 30}};
  job.stage_harvested_share_pct = {{"0", 70}};
  reply.jobs.push_back(job);
  reply.tasks.push_back(sample_task());
  CHECK_THAT(ctl::render_report(reply),
             Contains("512 ms") && Contains("21.5 %") && Contains("70.0 %") && Contains("pagerank"));
}

TEST_CASE("report has a line for each name of idle phases") {
  bus::ReportReply reply;
  bus::JobMeasures job;
  job.job = "rl";
  CHECK_THAT(ctl::render_report({{job}, {}}), !Contains("PHASE"));
  job.phases = {{"eval", 3, 12'100'000'000, 0, 0, 0, 0},
                {"rollout", 1040, 242'000'000'000, 200'000'000'000, 180'000'000'000, 180.4, 1120}};
  reply.jobs.push_back(job);
  CHECK_THAT(ctl::render_report(reply),
             Contains(R"(JOB  PHASE    COUNT        IDLE     HARVEST  HARVESTED  GIVE-BACK P50      P99
rl   eval         3      12.1 s           0          -              0        0
rl   rollout  1 040  4 min 02 s  3 min 00 s     90.0 %         180 µs  1.12 ms
)"));
}

TEST_CASE("json has the wire's names, nested, and survives text that is no UTF-8") {
  auto info = sample_task();
  info.log_tail = "\xff";
  const auto json = ctl::to_json(bus::TaskReply{info});
  CHECK(json["task"]["state"]["counters"]["steps"] == 1000);
  CHECK(json["task"]["load"]["params"]["scale"] == "14");
  CHECK(json["task"]["state"]["paused_by_user"] == false);
  CHECK_THAT(ctl::dump(json), Contains("\"log_tail\":\"\xEF\xBF\xBD\""));
}
