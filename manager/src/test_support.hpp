// What the manager's tests share: a recorder for what goes out, a house with a core and a clock in it, workers that say
// what they are told.
#pragma once

#include <unistd.h>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "core.hpp"

namespace freeride::manager {

// The core's log lines are for operators.
inline const bool kQuiet = (spdlog::set_level(spdlog::level::off), true);

/// A folder of its own, gone at the end.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "freeride-manager-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempDir() {
    std::error_code ec;
    std::filesystem::remove_all(path, ec);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::filesystem::path path;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Remembers everything.
struct Recorder final : Outside {
  struct Sent {
    std::string peer, id;
    Order order;
  };
  void answer(Ticket ticket, const Result<Reply>& reply, const std::string& bytes) override {
    CHECK(answers.count(ticket) == 0);  // once each
    answers.emplace(ticket, reply);
    attachments[ticket] = bytes;
  }
  Result<std::string> send(const std::string& peer, const Order& order) override {
    if (unreachable) return Error{Code::kUnavailable, "gone", {}};
    sent.push_back({peer, "order-" + std::to_string(++count), order});
    return sent.back().id;
  }
  /// At once, or, where `held`, with the next let_go().
  void in_background(std::function<void()> work, std::function<void()> then, bool /*soon*/) override {
    if (held) return background.emplace_back(std::move(work), std::move(then)), void();
    work();
    then();
  }
  void let_go() {
    held = false;
    for (auto& [work, then] : std::exchange(background, {})) work(), then();
  }
  void publish(const bus::TaskState& event) override { tasks.push_back(event); }
  void publish(const bus::WorkerState& event) override { workers.push_back(event); }
  void publish(const bus::JobMeasures& event) override { jobs.push_back(event); }
  void publish(const bus::TrainingPlan& event) override { plans.push_back(event); }
  void publish(const bus::BatchState& event) override { batches.push_back(event); }

  /// The orders of one type since the last call, oldest first; others stay.
  template <class T>
  std::vector<std::pair<Sent, T>> take() {
    std::vector<std::pair<Sent, T>> found;
    std::vector<Sent> rest;
    for (auto& one : sent) {
      if (auto* order = std::get_if<T>(&one.order)) {
        found.emplace_back(one, *order);
      } else {
        rest.push_back(one);
      }
    }
    sent = std::move(rest);
    return found;
  }

  std::map<Ticket, Result<Reply>> answers;
  std::map<Ticket, std::string> attachments;
  std::vector<Sent> sent;
  std::vector<bus::TaskState> tasks;
  std::vector<bus::WorkerState> workers;
  std::vector<bus::JobMeasures> jobs;
  std::vector<bus::TrainingPlan> plans;
  std::vector<bus::BatchState> batches;
  int count = 0;
  bool unreachable = false, held = false;
  std::vector<std::pair<std::function<void()>, std::function<void()>>> background;
};

/// A worker as the core sees it: registers, reports, answers. By default it does what it is told at once.
struct FakeWorker {
  explicit FakeWorker(std::string worker_name, int stage_number = -1)
      : name(std::move(worker_name)), stage(stage_number) {}
  std::string name;
  int stage;  ///< -1: no trainer
  std::string incarnation = "first";
  std::string job = "gpt", model = "cpu";
  uint32_t stages = 4;
  std::string device, host;
  int64_t memory_bytes = 8LL << 30, context_bytes = 0;
  std::map<std::string, bus::TaskReport> tasks;
  std::vector<bus::PluginState> plugins;
  uint64_t number = 0;
  bool earlier_version = false;      ///< that knows of no epochs
  std::string begins_as = "PAUSED";  ///< the state of a task that it has created
  bool programs = false;
  bool other_process = false;  ///< on its GPU, and no attached rank
  std::string why;             ///< of its rank; empty: an earlier version, that does not tell

  std::vector<bus::TrainingState> ranks() const {
    if (stage < 0) return {};
    bus::TrainingState rank;
    rank.job = job;
    rank.rank = rank.stage = static_cast<uint32_t>(stage);
    rank.stages = stages;
    rank.state = "active";
    rank.why = why;
    return {rank};
  }
  std::vector<bus::TaskReport> reports() const {
    std::vector<bus::TaskReport> list;
    for (const auto& [task, report] : tasks) list.push_back(report);
    return list;
  }
};

inline const std::string& plugin_bytes() {
  static const std::string bytes = [] {
    std::ifstream file(FREERIDE_TEST_PLUGIN, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return bytes;
}

/// A core on a fake clock and a state folder of its own. restart() ends it and starts another on the same state.
class House {
 public:
  explicit House(const std::function<void(CoreConfig&)>& adjust = {}) {
    config.paths.state_dir = dir.path / "state";
    config.paths.run_dir = dir.path / "run";
    config.version = "test";
    // Short: what they are for has tests of its own.
    config.orders.pause_ns = kNsPerSec;
    config.orders.stop_ns = 3 * kNsPerSec;
    config.orders.margin_ns = kNsPerSec;
    if (adjust) adjust(config);
    start();
  }

  void start() {
    auto store = StateStore::open(config.paths.database());
    REQUIRE(store.ok());
    auto started =
        Core::start(config, std::move(*store), out, clock, [this] { return clock.now_ns() / kNsPerMs + wall_ms; });
    REQUIRE(started.ok());
    core = std::move(*started);
  }
  void restart(bool orderly = true) {
    if (orderly) core->flush();
    core.reset();
    start();
  }

  Result<Reply> answer_of(Ticket ticket) {
    const auto found = out.answers.find(ticket);
    REQUIRE(found != out.answers.end());
    return found->second;
  }
  Result<bus::TaskInfo> load(const bus::Load& load, const std::string& id = {}, bool with_bytes = true) {
    const Ticket ticket = ++tickets;
    core->load(ticket, id.empty() ? "request-" + std::to_string(ticket) : id, load, with_bytes ? plugin_bytes() : "");
    return task_of(ticket);
  }
  Result<bus::TaskInfo> task_of(Ticket ticket) {
    auto answer = answer_of(ticket);
    if (!answer) return answer.error();
    return std::get<bus::TaskReply>(*answer).task;
  }
  Result<bus::TaskInfo> stop(const std::string& task) {
    core->stop(++tickets, task);
    return task_of(tickets);
  }
  Result<bus::TaskInfo> pause(const std::string& task) {
    core->pause(++tickets, task);
    return task_of(tickets);
  }
  Result<bus::TaskInfo> resume(const std::string& task) {
    core->resume(++tickets, task);
    return task_of(tickets);
  }
  std::vector<bus::TaskInfo> tasks() {
    core->list_tasks(++tickets);
    return std::get<bus::TasksReply>(*answer_of(tickets)).tasks;
  }
  bus::TaskInfo task(const std::string& name) {
    std::optional<bus::TaskInfo> last;
    for (auto& info : tasks()) {
      if (info.state.task == name) last = info;
    }
    REQUIRE(last.has_value());
    return *last;
  }
  std::string state(const std::string& name) { return task(name).state.state; }
  std::string reason(const std::string& name) { return task(name).state.reason; }
  bus::Verdict verdict(const std::string& name) { return task(name).state.verdict; }

  bus::WorkerPlan join(FakeWorker& worker) {
    bus::RegisterWorker hello;
    hello.worker = worker.name;
    hello.incarnation = worker.incarnation;
    hello.device_model = worker.model;
    hello.device = worker.device;
    hello.host = worker.host;
    hello.memory_bytes = hello.usable_bytes = worker.memory_bytes;
    hello.context_bytes = worker.context_bytes;
    hello.ranks = worker.ranks();
    hello.tasks = worker.reports();
    hello.plugins = worker.plugins;
    hello.programs = worker.programs;
    if (!worker.earlier_version) hello.number = ++worker.number;
    core->register_worker(++tickets, "peer-" + worker.name, hello);
    auto answer = answer_of(tickets);
    REQUIRE(answer.ok());
    return std::get<bus::WorkerPlan>(*answer);
  }
  bus::WorkerReport report_of(FakeWorker& worker) {
    bus::WorkerReport report;
    report.worker = worker.name;
    report.incarnation = worker.incarnation;
    report.usable_bytes = worker.memory_bytes;
    report.ranks = worker.ranks();
    report.tasks = worker.reports();
    report.plugins = worker.plugins;
    report.other_process = worker.other_process;
    if (!worker.earlier_version) report.number = ++worker.number;
    return report;
  }
  Result<Reply> send(const FakeWorker& worker, const bus::WorkerReport& report) {
    core->worker_report(++tickets, "peer-" + worker.name, report);
    return answer_of(tickets);
  }
  /// Reports, and returns the answer.
  bus::WorkerPlan renewal(FakeWorker& worker) {
    auto answer = send(worker, report_of(worker));
    REQUIRE(answer.ok());
    return std::get<bus::WorkerPlan>(*answer);
  }
  void report(FakeWorker& worker) { CHECK(send(worker, report_of(worker)).ok()); }
  void acknowledge(const Recorder::Sent& sent, const std::optional<Error>& error = {}) {
    core->worker_reply(sent.peer, sent.id, error, {});
  }
  /// Does what the core has ordered of this worker: profiles end well, runs become PAUSED, stops end.
  void obey(FakeWorker& worker) {
    std::vector<Recorder::Sent> all = std::exchange(out.sent, {});
    for (auto& sent : all) {
      if (sent.peer != "peer-" + worker.name) {
        out.sent.push_back(sent);
        continue;
      }
      if (auto* create = std::get_if<bus::CreateTask>(&sent.order)) {
        auto& task = worker.tasks[create->task] = {};
        task.task = create->task;
        task.purpose = create->purpose;
        task.revision = create->revision;
        task.state = worker.begins_as;
        if (!worker.earlier_version) task.epoch = create->epoch, task.instance = create->instance;
        if (create->purpose == "profile") {
          task.state = "STOPPED";
          task.verdict.kind = "finished";
          task.counters.steps = 10;
          task.counters.step_ns = 20 * kNsPerMs;
          task.counters.peak_memory_bytes = 100LL << 20;
        }
      } else if (auto* order = std::get_if<bus::TaskOrder>(&sent.order)) {
        if (order->order == "stop") end(worker, order->task, "stopped");
      } else if (auto* plan = std::get_if<bus::WorkerPlan>(&sent.order)) {
        std::erase_if(worker.tasks, [&](const auto& entry) {
          return std::none_of(plan->orders.begin(), plan->orders.end(),
                              [&](const auto& o) { return o.task == entry.first; });
        });
      }
      acknowledge(sent);
    }
    report(worker);
  }
  static void end(FakeWorker& worker, const std::string& task, const std::string& kind) {
    worker.tasks[task].state = "STOPPED";
    worker.tasks[task].verdict.kind = kind;
  }
  /// Seconds pass, with a report of each of `workers` in every one.
  void pass(int seconds, const std::vector<FakeWorker*>& workers = {}) {
    for (int n = 0; n < seconds; ++n) {
      clock.tick(kNsPerSec);
      for (auto* worker : workers) obey(*worker);
      core->tick();
    }
  }
  /// Profiled, placed, created and reported.
  void settle(FakeWorker& worker) {
    for (int n = 0; n < 4; ++n) obey(worker);
  }

  TempDir dir;
  CoreConfig config;
  Recorder out;
  FakeClock clock{1000 * kNsPerSec};
  int64_t wall_ms = 0;  ///< what the wall clock has been set forward
  std::unique_ptr<Core> core;
  Ticket tickets = 0;
};

inline bus::Load load_of(const std::string& name, int stage = -1) {
  bus::Load load;
  load.plugin = "side.so";
  load.name = name;
  load.stage = stage;
  return load;
}

}  // namespace freeride::manager
