// An hour of the core on a fake clock: tasks that finish and are replaced, GPUs and nodes that die, hosts that cannot
// be reached and go on, jobs of different cost under one slowdown budget.
//
// A worker reports once a minute instead of once a second, and the manager's times are longer likewise; policy and
// books are the manager's own. The state file lies in memory.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/policy/holdout.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kStepNs = 60 * kNsPerSec;
constexpr int64_t kIterationNs = 5 * kNsPerSec;
constexpr uint32_t kOfNode = 8, kStages = 8, kRanksOfJob = 1000;
constexpr double kBubbleShare = 0.25, kUsable = 0.9;  // of a bubble: what steps fill
constexpr double kBudgetPct = 1, kBaselinePct = 10;
constexpr double kDayS = 86400;
// How often something happens, in days between two of one GPU, or of one node.
constexpr double kGpuDiesDays = 0.5, kNodeDiesDays = 0.5, kNodeUnreachableDays = 0.25;
constexpr int kAwaySteps = 20, kUnreachableSteps = 6;
constexpr double kWorkS = 300;  // of bubbles that a task needs, half to twice of it
constexpr int kContents = 20;
const std::string kSha256(64, 'a');

struct Copy {
  bus::TaskReport report;
  int64_t renewed_ns = 0;
};

struct Worker {
  bus::RegisterWorker hello;
  bus::TrainingState rank;
  std::map<std::string, Copy> tasks;
  std::vector<bus::HoldoutPlan> plans;
  uint64_t number = 0, iteration = 0;
  int lives = 0;
  int away_steps = 0;         // it is dead for so long
  int unreachable_steps = 0;  // it goes on, and nobody hears it
  bool registered = false;
};

// Costs of jobs at full duty, in percent of an iteration: some less than the budget, some more.
double cost_pct(uint32_t job) {
  static constexpr double kCosts[] = {0.2, 0.5, 0.8, 1.5, 3};
  return kCosts[job % std::size(kCosts)];
}

class Day final : public Outside {
 public:
  explicit Day(uint32_t gpus) : workers_(gpus) {
    std::string folder = "/dev/shm/freeride-day-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) std::exit(1);
    folder_ = folder;
    CoreConfig config;
    config.paths.state_dir = folder_ / "state";
    config.paths.run_dir = folder_ / "run";
    config.limits.workers = std::max<size_t>(gpus, 64);
    config.worker_timeout_ns = 140 * kNsPerSec;
    config.orders.pause_ns = 180 * kNsPerSec;
    config.orders.stop_ns = 1200 * kNsPerSec;
    config.orders.margin_ns = 60 * kNsPerSec;
    config.job.budget.slowdown_pct = kBudgetPct;
    config.job.baseline_pct = kBaselinePct;
    config.job.baseline_block_ns = 60 * kNsPerSec;
    pause_ns_ = config.orders.pause_ns;
    auto store = StateStore::open(config.paths.database());
    if (!store) std::exit(1);
    auto core = Core::start(config, std::move(*store), *this, clock_, [this] { return clock_.now_ns() / kNsPerMs; });
    if (!core) std::exit(1);
    core_ = std::move(*core);
    for (uint32_t n = 0; n < gpus; ++n) make(n);
  }
  ~Day() override {
    core_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void run(int minutes) {
    for (int step = 0; step < minutes; ++step) {
      clock_.tick(kStepNs);
      strike();
      for (uint32_t n = 0; n < workers_.size(); ++n) live(n);
      submit();
      core_->tick();
      deliver();
    }
  }

  uint64_t submitted() const { return submitted_; }
  uint64_t refused() const { return refused_; }
  /// Orders to make a task that had ended, or that another worker might still execute.
  uint64_t run_twice() const { return twice_; }
  /// Tasks that have neither finished nor are live.
  uint64_t lost() {
    core_->list_tasks(++tickets_);
    std::set<std::string> live;
    for (const auto& info : std::get<bus::TasksReply>(*answer_).tasks) {
      if (info.state.verdict.kind.empty()) live.insert(info.state.task);
    }
    uint64_t lost = 0;
    for (uint64_t n = 0; n < submitted_; ++n) {
      const std::string name = "t-" + std::to_string(n);
      lost += live.count(name) == 0 && ended_.count(name) == 0 ? 1 : 0;
    }
    for (const auto& [kind, count] : verdicts_) lost += kind == "finished" ? 0 : count;
    return lost;
  }
  /// Of what could be harvested at most: but for baseline iterations, each bubble, as far as the budget goes.
  double harvested_share() const { return harvested_s_ / std::max(1.0, best_s_); }
  uint64_t struck() const { return struck_; }

  // ---- Outside
  void answer(Ticket, const Result<Reply>& reply, const std::string&) override { answer_ = reply; }
  Result<std::string> send(const std::string& peer, const Order& order) override {
    sent_.push_back({static_cast<uint32_t>(std::stoul(peer)), std::to_string(++orders_), order});
    return sent_.back().id;
  }
  void publish(const bus::TaskState& state) override {
    if (state.state != "STOPPED" || state.verdict.kind.empty()) return;
    if (!ended_.insert(state.task).second) return;
    ++verdicts_[state.verdict.kind];
  }
  void publish(const bus::WorkerState&) override {}
  void publish(const bus::JobMeasures&) override {}
  void publish(const bus::TrainingPlan&) override {}
  void publish(const bus::BatchState&) override {}

 private:
  struct Sent {
    uint32_t worker;
    std::string id;
    Order order;
  };

  void make(uint32_t n) {
    Worker& worker = workers_[n];
    worker.hello.host = "h" + std::to_string(n / kOfNode);
    worker.hello.device = "GPU-" + std::to_string(n % kOfNode);
    worker.hello.worker = worker.hello.host + ":" + worker.hello.device;
    worker.hello.device_model = "GPU";
    worker.hello.memory_bytes = worker.hello.usable_bytes = int64_t{40} << 30;
    if (n < 64) {
      bus::PluginState plugin;
      plugin.name = "side.so";
      plugin.sha256 = kSha256;
      plugin.state = "ready";
      worker.hello.plugins = {plugin};
    }
    bus::TrainingState& rank = worker.rank;
    rank.job = "job-" + std::to_string(n / kRanksOfJob);
    rank.state = "active";
    rank.rank = n % kRanksOfJob;
    rank.stages = kStages;
    rank.stage = rank.rank % kStages;
    rank.replica = rank.rank / kStages;
    rank.replicas = kRanksOfJob / kStages;
    jobs_ = n / kRanksOfJob + 1;
  }

  bool chance(double per_day) {
    return std::uniform_real_distribution<double>(0, 1)(random_) <
           per_day * (static_cast<double>(kStepNs) / kNsPerSec) / kDayS;
  }

  // What befalls GPUs and nodes in this minute.
  void strike() {
    for (uint32_t n = 0; n < workers_.size(); ++n) {
      if (chance(1 / kGpuDiesDays)) die(n), ++struck_;
      if (n % kOfNode != 0) continue;
      const bool dies = chance(1 / kNodeDiesDays), unreachable = chance(1 / kNodeUnreachableDays);
      struck_ += dies || unreachable ? 1 : 0;
      for (uint32_t one = n; one < std::min<size_t>(n + kOfNode, workers_.size()); ++one) {
        if (dies) die(one);
        if (unreachable) workers_[one].unreachable_steps = kUnreachableSteps;
      }
    }
  }

  void die(uint32_t n) {
    Worker& worker = workers_[n];
    worker.away_steps = kAwaySteps;
    worker.registered = false;
    for (const auto& [name, copy] : worker.tasks) holders_[name].erase(n);
    worker.tasks.clear();
  }

  bool may_execute(const Copy& copy) const {
    return copy.report.state != "STOPPED" && clock_.now_ns() - copy.renewed_ns < pause_ns_;
  }

  void live(uint32_t n) {
    Worker& worker = workers_[n];
    if (worker.away_steps > 0) {
      --worker.away_steps;
      return;
    }
    const bus::WorkerReport report = work(worker);
    if (worker.unreachable_steps > 0) {
      --worker.unreachable_steps;
      return;
    }
    const int64_t sent_ns = clock_.now_ns();
    if (worker.registered) {
      core_->worker_report(++tickets_, std::to_string(n), report);
      if (!answer_.ok()) worker.registered = false;
    }
    if (!worker.registered) {
      bus::RegisterWorker hello = worker.hello;
      if (worker.lives == 0 || worker.tasks.empty()) ++worker.lives;
      hello.incarnation = std::to_string(worker.lives);
      hello.ranks = {worker.rank};
      hello.tasks = report.tasks;
      hello.number = ++worker.number;
      core_->register_worker(++tickets_, std::to_string(n), hello);
      worker.registered = answer_.ok();
    }
    if (const auto* plan = answer_.ok() ? std::get_if<bus::WorkerPlan>(&*answer_) : nullptr) obey(n, *plan, sent_ns);
    deliver();
  }

  const bus::HoldoutPlan* plan_of(const Worker& worker, uint64_t iteration) const {
    const bus::HoldoutPlan* found = nullptr;
    for (const auto& plan : worker.plans) {
      if (plan.job == worker.rank.job && plan.block_iterations != 0 && iteration >= plan.from_iteration) found = &plan;
    }
    return found;
  }

  // A minute of training and of side tasks.
  bus::WorkerReport work(Worker& worker) {
    bus::WorkerReport report;
    report.worker = worker.hello.worker;
    report.incarnation = std::to_string(worker.lives);
    report.usable_bytes = worker.hello.usable_bytes;
    report.number = ++worker.number;
    const auto job = static_cast<uint32_t>(std::atoi(worker.rank.job.c_str() + 4));
    Copy* task = nullptr;
    for (auto& [name, copy] : worker.tasks) {
      if (task == nullptr && copy.report.purpose == "run" && may_execute(copy)) task = &copy;
    }
    double taken = 0;  // iterations with leases
    const int iterations = static_cast<int>(kStepNs / kIterationNs);
    for (int i = 0; i < iterations; ++i) {
      const uint64_t number = ++worker.iteration;
      bool held_out = false, on_duty = false;
      if (const bus::HoldoutPlan* wire = plan_of(worker, number)) {
        const policy::HoldoutPlan plan{wire->job,       wire->seed,    wire->block_iterations, wire->from_iteration,
                                       wire->share_pct, wire->duty_pct};
        held_out = policy::is_held_out(plan, number);
        on_duty = policy::is_on_duty(plan, number);
      } else {
        on_duty = true;  // nothing has been planned yet
      }
      const bool leases = task != nullptr && !held_out && on_duty;
      taken += leases ? 1 : 0;
      const double bubble_s = static_cast<double>(kIterationNs) / 1e9 * kBubbleShare * kUsable;
      best_s_ += bubble_s * (1 - kBaselinePct / 100) * std::min(1.0, kBudgetPct / cost_pct(job));
      const double slower = leases ? cost_pct(job) / 100 : 0;
      if (worker.rank.replica == 0) {
        bus::TrainingIteration one;
        one.job = worker.rank.job;
        one.rank = worker.rank.rank;
        one.stage = worker.rank.stage;
        one.iteration = number;
        one.begin_ns = clock_.now_ns();
        const double noise = std::normal_distribution<double>(0, 0.002)(random_);
        one.end_ns = one.begin_ns + static_cast<int64_t>(kIterationNs * (1 + slower + noise));
        one.bubble_ns = static_cast<int64_t>(kIterationNs * kBubbleShare);
        one.holdout = held_out;
        one.harvested = leases;
        report.iterations.push_back(one);
      }
    }
    worker.rank.iteration = worker.iteration;
    const double harvested_s = taken * kIterationNs / 1e9 * kBubbleShare * kUsable;
    bus::BubbleTotals totals;
    totals.job = worker.rank.job;
    totals.rank = worker.rank.rank;
    totals.stage = worker.rank.stage;
    totals.bubble_ns = static_cast<int64_t>(kStepNs * kBubbleShare);
    totals.harvested_ns = static_cast<int64_t>(harvested_s * 1e9);
    report.bubbles = {totals};
    report.ranks = {worker.rank};
    if (task != nullptr) {
      harvested_s_ += harvested_s;
      double& left_s = left_s_[task->report.task];
      left_s -= harvested_s;
      task->report.state = "PAUSED";
      task->report.counters.steps += static_cast<uint64_t>(harvested_s * 10);
      task->report.counters.harvested_ns += totals.harvested_ns;
      if (left_s <= 0) {
        task->report.state = "STOPPED";
        task->report.verdict.kind = "finished";
      }
    }
    for (const auto& [name, copy] : worker.tasks) report.tasks.push_back(copy.report);
    return report;
  }

  void obey(uint32_t n, const bus::WorkerPlan& plan, int64_t sent_ns) {
    Worker& worker = workers_[n];
    for (const auto& order : plan.settled) {
      worker.tasks.erase(order.task);
      holders_[order.task].erase(n);
    }
    for (const auto& order : plan.orders) {
      const auto copy = worker.tasks.find(order.task);
      if (copy == worker.tasks.end()) continue;
      if (order.order == "stop" && copy->second.report.state != "STOPPED") {
        copy->second.report.state = "STOPPED";
        copy->second.report.verdict.kind = "stopped";
      }
      if (order.order == "run" && order.epoch == copy->second.report.epoch) copy->second.renewed_ns = sent_ns;
    }
    if (!plan.holdout.empty()) worker.plans = plan.holdout;
  }

  // Orders reach their workers at once, or not at all.
  void deliver() {
    while (!sent_.empty()) {
      const Sent sent = std::move(sent_.front());
      sent_.pop_front();
      Worker& worker = workers_[sent.worker];
      if (worker.away_steps > 0 || worker.unreachable_steps > 0 || !worker.registered) continue;
      if (const auto* order = std::get_if<bus::CreateTask>(&sent.order)) create(sent.worker, *order);
      if (const auto* plan = std::get_if<bus::WorkerPlan>(&sent.order)) obey(sent.worker, *plan, clock_.now_ns());
      core_->worker_reply(std::to_string(sent.worker), sent.id, {}, {});
    }
  }

  void create(uint32_t n, const bus::CreateTask& order) {
    Copy copy;
    copy.renewed_ns = clock_.now_ns();
    copy.report.task = order.task;
    copy.report.purpose = order.purpose;
    copy.report.state = "CREATED";
    copy.report.epoch = order.epoch;
    copy.report.instance = order.instance;
    copy.report.sha256 = order.sha256;
    if (order.purpose == "profile") {
      copy.report.state = "STOPPED";
      copy.report.verdict.kind = "finished";
      copy.report.counters.steps = 10;
      copy.report.counters.step_ns = kNsPerSec;
      copy.report.counters.peak_memory_bytes = int64_t{1} << 30;
    } else {
      std::set<uint32_t>& holders = holders_[order.task];
      for (const uint32_t other : holders) {
        if (other != n && may_execute(workers_[other].tasks.at(order.task))) ++twice_;
      }
      if (ended_.count(order.task) != 0) ++twice_;
      holders.insert(n);
    }
    workers_[n].tasks[order.task] = std::move(copy);
  }

  // There is always a task more than there are GPUs.
  void submit() {
    const size_t wanted = workers_.size() + workers_.size() / 20 + 1;
    for (int most = 2000; most > 0 && submitted_ - ended_.size() < wanted; --most) {
      bus::Load load;
      load.plugin = "side.so";
      load.sha256 = kSha256;
      load.name = "t-" + std::to_string(submitted_);
      load.job = "job-" + std::to_string(submitted_ % jobs_);
      load.params["kind"] = std::to_string(submitted_ % kContents);
      load.restart = "";
      core_->load(++tickets_, load.name, load, "");
      if (!answer_.ok()) {
        ++refused_;
        return;
      }
      left_s_[load.name] = kWorkS * std::uniform_real_distribution<double>(0.5, 2)(random_);
      ++submitted_;
    }
  }

  std::filesystem::path folder_;
  FakeClock clock_{1000 * kNsPerSec};
  std::vector<Worker> workers_;
  std::deque<Sent> sent_;
  Result<Reply> answer_ = Reply(bus::Ack{});
  int64_t pause_ns_ = 0;
  std::map<std::string, std::set<uint32_t>> holders_;  // of copies, by task
  std::map<std::string, double> left_s_;
  std::set<std::string> ended_;
  std::map<std::string, uint64_t> verdicts_;
  double harvested_s_ = 0, best_s_ = 0;
  uint64_t submitted_ = 0, twice_ = 0, orders_ = 0, refused_ = 0, struck_ = 0;
  uint32_t jobs_ = 1;
  Ticket tickets_ = 0;
  std::mt19937_64 random_{20261124};
  std::unique_ptr<Core> core_;  // last: it calls the others
};

}  // namespace

#ifdef FREERIDE_SANITIZED  // many times as long there; what it calls has tests of its own
#define SIMULATED_HOUR "[.]"
#else
#define SIMULATED_HOUR "[day]"
#endif
TEST_CASE("in a simulated hour no task is lost, and none runs twice, whatever dies or cannot be reached",
          SIMULATED_HOUR) {
  Day day(64);
  day.run(60);
  CHECK(day.struck() > 0);
  CHECK(day.submitted() > 100);
  CHECK(day.refused() == 0);
  CHECK(day.lost() == 0);
  CHECK(day.run_twice() == 0);
  CHECK(day.harvested_share() > 0.5);
}

}  // namespace freeride::manager
