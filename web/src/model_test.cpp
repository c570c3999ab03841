#include "model.hpp"

#include <catch2/catch.hpp>

#include "freeride/bus/codec.hpp"
#include "live.hpp"
#include "metrics.hpp"

using namespace freeride;
using namespace freeride::web;

namespace {

constexpr int64_t kMs = 1'000'000, kSec = 1000 * kMs;
constexpr int64_t kNow = 1'700'000'000 * kSec;  // received; publishers' clocks begin at 0

struct Bus {
  explicit Bus(Model& model) : model(model) {}
  template <class E>
  void say(const E& event, int64_t t_ns = 10 * kSec, bool kept = false, const std::string& source = "worker a") {
    bus::Envelope envelope;
    envelope.source = source;
    envelope.seq = ++seq;
    envelope.t_ns = t_ns;
    envelope.kept = kept;
    model.on_event(std::string(E::kTopic) + "/" + event.key(), bus::encode(envelope, event), kNow + t_ns);
  }
  Model& model;
  uint64_t seq = 0;
};

bus::TrainingState rank(uint32_t stage, const std::string& state = "active") {
  bus::TrainingState made;
  made.job = "gpt";
  made.device = "cpu-" + std::to_string(stage);
  made.worker = "host:" + made.device;
  made.rank = made.stage = stage;
  made.state = state;
  return made;
}

bus::BubbleEnd bubble(uint32_t stage, int64_t begin_ns, int64_t length_ns) {
  bus::BubbleEnd made;
  made.job = "gpt";
  made.rank = made.stage = stage;
  made.begin_ns = begin_ns;
  made.end_ns = begin_ns + length_ns;
  return made;
}

bus::TrainingIteration iteration(uint32_t stage, int64_t begin_ns, bool holdout, int64_t harvested_ns) {
  bus::TrainingIteration made;
  made.job = "gpt";
  made.device = "cpu-" + std::to_string(stage);
  made.rank = made.stage = stage;
  made.begin_ns = begin_ns;
  made.end_ns = begin_ns + 100 * kMs;
  made.bubble_ns = 20 * kMs;
  made.harvested_ns = harvested_ns;
  made.holdout = holdout;
  return made;
}

bus::TaskState task(const std::string& name, const std::string& state = "PAUSED") {
  bus::TaskState made;
  made.task = name;
  made.plugin = "pagerank.so";
  made.job = "gpt";
  made.worker = "host:cpu-0";
  made.state = state;
  return made;
}

}  // namespace

TEST_CASE("bubbles come on the receiver's clock, one number each", "[model]") {
  Model model;
  Bus bus(model);
  bus.say(rank(0));
  bus.say(task("pagerank"));
  auto state = model.changes(kNow + 10 * kSec, true);
  const auto lane = state["ranks"]["gpt/0"]["id"].get<int64_t>();
  const auto number = state["tasks"]["pagerank"]["id"].get<int64_t>();
  auto end = bubble(0, 10 * kSec, 20 * kMs);
  end.leased = true;
  end.task = "pagerank";
  end.side_begin_ns = end.begin_ns + 1 * kMs;
  end.side_end_ns = end.begin_ns + 15 * kMs;
  end.overrun_ns = 30'000;
  bus.say(end, 10 * kSec + 20 * kMs);
  const auto frame = model.changes(kNow + 11 * kSec, false);
  CHECK(frame["now"] == (kNow + 11 * kSec) / 1000);
  CHECK(frame["bubbles"] == nlohmann::json({lane, -1'000'000, 20'000, 1'000, 14'000, 30, 1, number, 0}));
  CHECK(frame.count("ranks") == 0);
  CHECK(model.changes(kNow + 11 * kSec, true).is_null());
}

TEST_CASE("an idle phase is shown from when it began until its end is heard, and its bubble has its name", "[model]") {
  Model model;
  Bus bus(model);
  auto state = rank(0);
  bus.say(state);
  (void)model.changes(kNow, true);
  state.phase = "rollout";
  state.phase_ms = 1500;
  bus.say(state, 10 * kSec);
  auto frame = model.changes(kNow, true);
  CHECK(frame["ranks"]["gpt/0"]["phase"] == "rollout");
  CHECK(frame["ranks"]["gpt/0"]["phase_since"] == (kNow + 8500 * kMs) / 1000);
  auto end = bubble(0, 8500 * kMs, 3 * kSec);
  end.phase = "rollout";
  bus.say(end, 12 * kSec);
  frame = model.changes(kNow, true);
  CHECK(frame["ranks"]["gpt/0"]["phase"] == "");
  CHECK(frame["ranks"]["gpt/0"]["phase_since"] == 0);
  CHECK(frame["bubbles"].back() == frame["phases"]["rollout"]["id"]);
}

TEST_CASE("since when a phase has been whose begin was not heard, the manager says", "[model]") {
  Model model;
  Bus bus(model);
  auto state = rank(0);
  state.phase = "rollout";
  state.phase_ms = 1500;
  bus.say(state, 10 * kSec, true);
  CHECK(model.changes(kNow, true)["ranks"]["gpt/0"]["phase_since"] == 0);
  bus::StatusReply status;
  status.workers.emplace_back();
  status.workers[0].state.worker = state.worker;
  status.workers[0].silent_ms = 500;
  state.phase_ms = 4000;
  status.workers[0].ranks = {state};
  model.on_status(status, kNow + 20 * kSec);
  CHECK(model.changes(kNow, true)["ranks"]["gpt/0"]["phase_since"] == (kNow + 15'500 * kMs) / 1000);
  bus.say(rank(0), 21 * kSec);
  model.on_status(status, kNow + 21 * kSec);  // older than the event
  CHECK(model.changes(kNow, true)["ranks"]["gpt/0"]["phase"] == "");
}

TEST_CASE("metrics and the page have a job's idle phases by name", "[model][metrics]") {
  Model model;
  Bus bus(model);
  bus::JobMeasures job;
  job.job = "rl";
  job.phases = {{"rollout", 40, 242 * kSec, 200 * kSec, 150 * kSec, 180, 1120}};
  bus.say(job);
  const auto frame = model.changes(kNow, true);
  CHECK(frame["jobs"]["rl"]["phases"][0]["name"] == "rollout");
  CHECK(frame["jobs"]["rl"]["phases"][0]["harvested_pct"] == 75.0);
  const std::string text = metrics_text(model, {}, 4);
  CHECK_THAT(text, Catch::Contains("freeride_idle_phases_total{job=\"rl\",phase=\"rollout\"} 40\n"));
  CHECK_THAT(text, Catch::Contains("freeride_idle_phase_seconds_total{job=\"rl\",phase=\"rollout\"} 242\n"));
  CHECK_THAT(text, Catch::Contains("freeride_idle_phase_harvested_seconds_total{job=\"rl\",phase=\"rollout\"} 150\n"));
  CHECK_THAT(text, Catch::Contains("freeride_idle_phase_give_back_p99_seconds{job=\"rl\",phase=\"rollout\"} 0.00112"));
  job.phases.assign(1000, job.phases[0]);
  for (size_t i = 0; i < job.phases.size(); ++i) job.phases[i].phase = "p" + std::to_string(i);
  bus.say(job);
  CHECK_THAT(metrics_text(model, {}, 4), !Catch::Contains("p64\""));
}

TEST_CASE("a rank's reason is its worker's, unless that is lost or does not tell", "[model]") {
  Model model;
  Bus bus(model);
  auto told = rank(0);
  told.why = "harvesting";
  told.guessed = true;
  bus.say(told);
  bus.say(rank(1));  // of a worker that does not tell
  auto frame = model.changes(kNow, true);
  CHECK(frame["ranks"]["gpt/0"]["why"] == "harvesting");
  CHECK(frame["ranks"]["gpt/0"]["guessed"] == true);
  CHECK(frame["ranks"]["gpt/1"]["why"] == "unknown");
  CHECK_THAT(metrics_text(model, {}, 4), Catch::Contains("freeride_ranks{job=\"gpt\",why=\"harvesting\"} 1"));
  bus::WorkerState worker;
  worker.worker = told.worker;
  worker.state = "lost";
  bus.say(worker);
  frame = model.changes(kNow, true);
  CHECK(frame["ranks"]["gpt/0"]["why"] == "worker_lost");
  auto died = rank(0, "lost");
  died.why = "died";
  bus.say(died);
  CHECK(model.changes(kNow, true)["ranks"]["gpt/0"]["why"] == "died");
}

TEST_CASE("only what has changed is sent, and a page that is opened later knows the same", "[model]") {
  Model model;
  Bus bus(model);
  bus.say(rank(0));
  bus.say(task("a"));
  bus.say(task("b"));
  (void)model.changes(kNow, true);
  auto changed = task("a");
  changed.why = "holdout";
  bus.say(changed);
  const auto frame = model.changes(kNow, true);
  CHECK(frame["tasks"] == nlohmann::json({{"a", {{"why", "holdout"}}}}));
  CHECK(frame.count("ranks") == 0);

  bus::ReportReply report;  // b is no longer kept by the manager
  report.tasks.emplace_back();
  report.tasks.back().state = changed;
  report.tasks.back().load.user = "alice";
  model.on_report(report, kNow + 11 * kSec);
  CHECK(model.tasks().size() == 2);  // the answer may be older than the event
  model.on_report(report, kNow + 20 * kSec);
  const auto later = model.changes(kNow, true);
  CHECK(later["tasks"]["b"].is_null());
  CHECK(later["tasks"]["a"] == nlohmann::json({{"user", "alice"}}));

  const auto whole = model.snapshot(kNow);
  CHECK(whole["whole"] == true);
  CHECK(whole["tasks"].size() == 1);
  CHECK(whole["tasks"]["a"]["why"] == "holdout");
  CHECK(whole["ranks"]["gpt/0"]["device"] == "cpu-0");
}

TEST_CASE("two workers of one host share a clock, another host has its own", "[model]") {
  ClockMap clocks;
  const int64_t first = clocks.shift("a", 100, kNow);
  CHECK(clocks.shift("b", 100, kNow + 3 * kMs) == first);
  CHECK(clocks.shift("c", 500 * kSec, kNow) == kNow - 500 * kSec);
  CHECK(clocks.shift("a", 100, kNow + 10 * kSec) == first);  // late for once: lanes do not jump
}

TEST_CASE("a run's shares, sums and ends", "[model][metrics]") {
  Model model;
  Bus bus(model);
  bus.say(rank(1));
  for (int i = 0; i < 30; ++i) bus.say(iteration(1, i * 100 * kMs, i % 2 == 0, i % 2 == 0 ? 0 : 15 * kMs));
  auto frame = model.changes(kNow, true);
  CHECK(frame["ranks"]["gpt/1"]["bubble_pct"] == 20.0);
  CHECK(frame["ranks"]["gpt/1"]["harvested_pct"] == 75.0);
  CHECK(frame["iterations"].size() == 30 * 4);

  bus.say(task("t", "RUNNING"));
  bus::TaskProgress progress;
  progress.task = "t";
  progress.state = "RUNNING";
  progress.counters.steps = 10;
  progress.counters.leases = 4;
  progress.counters.overrun_ns = 200'000;
  bus.say(progress, 20 * kSec);
  progress.counters.steps = 30;
  bus.say(progress, 21 * kSec);
  CHECK(model.tasks().at("t").steps_per_s == Approx(20));
  CHECK(model.overruns().at("gpt").leases == 4);
  CHECK(model.overruns().at("gpt").sum_ns == 200'000);

  auto ended = task("t", "STOPPED");
  ended.verdict.kind = "crashed";
  ended.verdict.gpu_fault = true;
  bus.say(ended);
  bus.say(ended);
  CHECK(model.ends().at("crashed") == 1);
  CHECK(model.gpu_faults() == 1);

  const std::string text = metrics_text(model, {"1", 2, 3}, 10);
  const std::string labels = "{job=\"gpt\",stage=\"1\",replica=\"0\",rank=\"1\",device=\"cpu-1\"} ";
  CHECK(text.find("freeride_bubble_seconds_total" + labels + "0.6\n") != text.npos);
  CHECK(text.find("freeride_offered_bubble_seconds_total" + labels + "0.3\n") != text.npos);
  CHECK(text.find("freeride_harvested_seconds_total" + labels + "0.225\n") != text.npos);
  CHECK(text.find("freeride_task_ends_total{verdict=\"crashed\"} 1\n") != text.npos);
  CHECK(text.find("freeride_web_viewers 2\n") != text.npos);
}

TEST_CASE("what a side task says of its device is counted, bounded, and told", "[model][metrics]") {
  Limits limits;
  limits.alarms = 2;
  Model model(limits);
  Bus bus(model);
  bus::WorkerState worker;
  worker.worker = "node1-id:GPU-a";
  worker.host = "node1";
  worker.device = "GPU-a";
  worker.state = "up";
  bus.say(worker);
  bus::DeviceAlarm alarm;
  alarm.worker = worker.worker;
  alarm.device = worker.device;
  alarm.serial = "165";
  alarm.task = "canary";
  alarm.alarm = "wrong";
  alarm.count = alarm.rise = 2;
  bus.say(alarm);
  alarm.count = 5;
  alarm.rise = 3;
  bus.say(alarm);
  for (const char* name : {"slow", "one too many"}) {
    alarm.alarm = name;
    alarm.rise = 1;
    bus.say(alarm);
  }
  const std::string text = metrics_text(model, {"1", 2, 3}, 10);
  const std::string labels = "{host=\"node1\",device=\"GPU-a\",serial=\"165\",alarm=\"wrong\"} 5\n";
  CHECK(text.find("freeride_device_alarms_total" + labels) != text.npos);
  CHECK(text.find("alarm=\"slow\"} 1\n") != text.npos);
  CHECK(text.find("one too many") == text.npos);
  CHECK(model.left_out() == 1);
  const auto notices = model.changes(kNow, true)["notices"];
  REQUIRE(!notices.empty());
  CHECK(notices.dump().find("side task canary says 'wrong' of it, 5 times so far; serial number 165") !=
        std::string::npos);
}

TEST_CASE("ended tasks that are heard of late are not news", "[model]") {
  Model model;
  Bus bus(model);
  auto ended = task("t", "STOPPED");
  ended.verdict.kind = "crashed";
  bus.say(ended, 10 * kSec, true);
  CHECK(model.ends().empty());
  CHECK(model.snapshot(kNow)["notices"].empty());
}

TEST_CASE("series are bounded, the rest is summed up, and nobody's label breaks the format", "[metrics]") {
  Model model;
  Bus bus(model);
  for (int i = 0; i < 20; ++i) {
    auto made = task("t" + std::to_string(10 + i), "RUNNING");
    made.counters.steps = 5;
    bus.say(made);
  }
  bus.say(task("evil\"} 1\n\xff"));
  const std::string text = metrics_text(model, {}, 4);
  CHECK(text.find("freeride_task_steps_total{job=\"\",task=\"other\"} 85\n") != text.npos);
  CHECK(text.find("task=\"evil\\\"} 1\\n\xEF\xBF\xBD\"") != text.npos);
  CHECK(text.find("task=\"t13\"") == text.npos);  // by name: "evil", t10, t11 and t12 come first
}

TEST_CASE("OpenMetrics names a counter's family without _total and says where it ends", "[metrics]") {
  const Model model;
  const std::string text = metrics_text(model, {"1", 2, 3}, 4, true);
  CHECK(text.find("# TYPE freeride_web_viewers_dropped counter\n") != std::string::npos);
  CHECK(text.find("# HELP freeride_web_viewers_dropped Pages") != std::string::npos);
  CHECK(text.find("\nfreeride_web_viewers_dropped_total 3\n") != std::string::npos);
  CHECK(text.find("# TYPE freeride_web_viewers gauge\n") != std::string::npos);
  CHECK(text.ends_with("\n# EOF\n"));
  CHECK(text.find("# EOF") == text.rfind("# EOF"));
}

TEST_CASE("who asks for OpenMetrics 1.0 gets it, and nobody else", "[metrics]") {
  for (const char* accept :
       {"application/openmetrics-text", "application/openmetrics-text; version=1.0.0",
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "text/plain;q=0.5, application/openmetrics-text;version=1.0.0"}) {
    INFO(accept);
    CHECK(wants_open_metrics(accept));
  }
  for (const char* accept : {"", "*/*", "text/plain", ",;,;", "application/openmetrics-text;q=0",
                             "application/openmetrics-text;version=0.0.1", "application/openmetrics-textual",
                             "application/openmetrics-text;q=0.1,text/plain;q=0.9"}) {
    INFO(accept);
    CHECK_FALSE(wants_open_metrics(accept));
  }
}

TEST_CASE("I and budget appear once they are known", "[metrics]") {
  Model model;
  bus::StatusReply status;
  status.version = "0.1.0";
  status.jobs.emplace_back();
  status.jobs.back().job = "gpt";
  model.on_status(status, kNow);
  CHECK(metrics_text(model, {}, 4).find("freeride_time_increase") == std::string::npos);
  status.jobs.back().measured = true;
  status.jobs.back().time_increase_pct = 0.5;
  status.jobs.back().budget_pct = 1;
  model.on_status(status, kNow);
  const std::string text = metrics_text(model, {}, 4);
  CHECK(text.find("freeride_time_increase_ratio{job=\"gpt\"} 0.005\n") != text.npos);
  CHECK(text.find("freeride_time_increase_budget_ratio{job=\"gpt\"} 0.01\n") != text.npos);
  CHECK(text.find("freeride_manager_up 1\n") != text.npos);
  model.on_silence("gone");
  CHECK(metrics_text(model, {}, 4).find("freeride_manager_up 0\n") != std::string::npos);
}

TEST_CASE("whatever is published, what is kept is bounded and makes sense", "[model]") {
  Limits limits;
  limits.ranks = 8;
  limits.tasks = 8;
  limits.workers = 8;
  limits.jobs = 4;
  limits.notices = 10;
  limits.frame_bubbles = 16;
  Model model(limits);
  Bus bus(model);
  model.on_event("bubble.end/gpt/0", "garbage", kNow);
  CHECK(model.unreadable() == 1);
  for (uint32_t i = 0; i < 100; ++i) {
    bus.say(rank(i));
    bus.say(task("t" + std::to_string(i)));
    bus::WorkerState worker;
    worker.worker = "w" + std::to_string(i);
    worker.state = "lost";
    bus.say(worker);
    bus::JobMeasures job;
    job.job = "j" + std::to_string(i);
    bus.say(job);
    auto wild = bubble(i % 8, INT64_MIN, 0);
    wild.end_ns = INT64_MAX;
    wild.overrun_ns = INT64_MIN;
    wild.side_begin_ns = INT64_MAX;
    wild.side_end_ns = INT64_MIN;
    bus.say(wild);
    auto long_one = iteration(0, INT64_MIN, false, INT64_MAX);
    long_one.end_ns = INT64_MAX;
    long_one.bubble_ns = INT64_MAX;
    bus.say(long_one);
  }
  CHECK(model.ranks().size() == 8);
  CHECK(model.tasks().size() == 8);
  CHECK(model.workers().size() == 8);
  CHECK(model.jobs().size() == 4);
  CHECK(model.left_out() > 300);
  const auto frame = model.changes(kNow, true);
  CHECK(frame["bubbles"].size() == 16 * 9);
  CHECK(frame["notices"].size() == 10);
  CHECK(model.ranks().at("gpt/0").harvested_ns == INT64_MAX);
  CHECK_FALSE(metrics_text(model, {}, 4).empty());
}

TEST_CASE("of very many ranks no single bubbles are sent", "[model]") {
  Limits limits;
  limits.lanes = 2;
  Model model(limits);
  Bus bus(model);
  for (uint32_t i = 0; i < 3; ++i) bus.say(rank(i));
  bus.say(bubble(0, 10 * kSec, kMs));
  const auto frame = model.changes(kNow, true);
  CHECK(frame.count("bubbles") == 0);
  CHECK(frame["manager"]["manager"]["lanes"] == false);
  CHECK_FALSE(model.wants_bubbles());
}

TEST_CASE("a rank that has ended is shown for a while", "[model]") {
  Model model;
  Bus bus(model);
  bus.say(rank(0));
  bus.say(rank(0, "gone"));
  (void)model.changes(kNow + 20 * kSec, true);
  CHECK(model.ranks().size() == 1);
  const auto frame = model.changes(kNow + 100 * kSec, true);
  CHECK(frame["ranks"]["gpt/0"].is_null());
  CHECK(model.ranks().empty());
}

TEST_CASE("a viewer that does not read is dropped, the others are not", "[hub]") {
  Hub::Limits limits;
  limits.viewers = 2;
  limits.frames = 3;
  Hub hub(limits);
  const auto first = std::make_shared<const std::string>("first");
  auto slow = hub.add(first), quick = hub.add(first);
  REQUIRE(slow);
  CHECK(hub.add(first) == nullptr);
  for (int i = 0; i < 10; ++i) {
    hub.publish(std::make_shared<const std::string>(std::to_string(i)));
    CHECK(quick->take(std::chrono::milliseconds(0)) != nullptr);
  }
  CHECK(slow->ended());
  CHECK(slow->take(std::chrono::milliseconds(0)) == nullptr);
  CHECK_FALSE(quick->ended());
  CHECK(hub.size() == 1);
  CHECK(hub.dropped() == 1);
  CHECK(hub.add(first) != nullptr);
  hub.end();
  CHECK(quick->ended());
  CHECK(hub.add(first) == nullptr);
}

TEST_CASE("a frame that is larger than a viewer's room drops it", "[hub]") {
  Hub::Limits limits;
  limits.bytes = 1000;
  Hub hub(limits);
  auto viewer = hub.add(std::make_shared<const std::string>(std::string(5000, 'x')));  // the first one is not counted
  hub.publish(std::make_shared<const std::string>(std::string(600, 'x')));
  CHECK_FALSE(viewer->ended());
  hub.publish(std::make_shared<const std::string>(std::string(600, 'x')));
  CHECK(viewer->ended());
}

TEST_CASE("who joins while the model is fed misses nothing", "[live]") {
  Live live({}, {}, "1", 10);
  live.feed([](Model& model) { Bus(model).say(rank(0)); });
  live.publish(kNow);
  auto viewer = live.join(kNow);
  const auto whole = nlohmann::json::parse(*viewer->take(std::chrono::milliseconds(0)));
  CHECK(whole["ranks"].size() == 1);
  live.feed([](Model& model) { Bus(model).say(bubble(0, 10 * kSec, kMs)); });
  CHECK(live.wants_bubbles());
  live.publish(kNow);
  const auto next = nlohmann::json::parse(*viewer->take(std::chrono::milliseconds(0)));
  CHECK(next["bubbles"].size() == 9);
  live.leave(viewer);
  CHECK_FALSE(live.wants_bubbles());
}
