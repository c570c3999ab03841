// What workers say.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

// More than any honest worker has; what goes beyond is dropped.
constexpr size_t kMaxTasksOfWorker = 512;
constexpr size_t kMaxRanksOfWorker = 64;
constexpr size_t kMaxPluginsOfWorker = 1024;
constexpr int64_t kMaxMemory = int64_t{1} << 50;

int64_t sane_bytes(int64_t bytes) {
  return std::clamp<int64_t>(bytes, 0, kMaxMemory);
}

// Whether what the worker runs is what the task is, or is about to be.
bool is_of(const Task& task, const bus::TaskReport& report) {
  if (report.revision == task.row.info.revision) return true;
  const auto& replacement = task.row.info.replacement;
  return report.revision == replacement.revision && report.replacement.revision == replacement.revision &&
         report.replacement.state == "done" && !replacement.load.plugin.empty();
}

bool is_there(const bus::TrainingState& rank) {
  return rank.state != "gone" && rank.state != "lost";
}

}  // namespace

Worker* Core::worker_of(const std::string& name) {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

void Core::register_worker(Ticket ticket, const std::string& peer, const bus::RegisterWorker& news) {
  if (!is_plain(news.worker) || !is_plain(news.incarnation)) {
    return outside_.answer(ticket, Error{Code::kInvalidArgument, "a worker must give its name and incarnation", {}},
                           {});
  }
  if (workers_.count(news.worker) == 0 && workers_.size() >= kMaxWorkers) {
    return outside_.answer(ticket, Error{Code::kExhausted, "there are 1024 workers already", {}}, {});
  }
  Worker& worker = workers_[news.worker];
  const bool same = worker.incarnation == news.incarnation;
  spdlog::info("worker {}: {} (pid {}, {} tasks, {} ranks)", news.worker, same ? "back" : "registered", news.pid,
               news.tasks.size(), news.ranks.size());
  worker.name = news.worker;
  worker.incarnation = news.incarnation;
  worker.peer = peer;
  worker.host = bounded(news.host, 128);
  worker.device = bounded(news.device, 128);
  worker.model = bounded(news.device_model, 128);
  worker.sandbox = bounded(news.sandbox, 128);
  worker.pid = news.pid;
  worker.memory_bytes = sane_bytes(news.memory_bytes);
  worker.usable_bytes = sane_bytes(news.usable_bytes);
  worker.context_bytes = sane_bytes(news.context_bytes);
  worker.state = Worker::State::kUp;
  worker.heard_ns = clock_.now_ns();
  worker.plan_id.clear();
  worker.plugins.clear();
  worker.tasks.clear();
  take_ranks(worker, news.ranks);
  take_plugins(worker, news.plugins);
  take_tasks(worker, news.tasks, false);
  // A new process has none of the old one's tasks. The same one may not have seen our latest CreateTask yet.
  requeue_missing(worker, "worker " + worker.name + (same ? " has it no more" : " was restarted"), !same);
  for (auto& [name, run] : profile_runs_) {
    // Dealt with at the next tick. The same process may not have seen our latest CreateTask yet.
    if (run.worker == worker.name && worker.tasks.count(name) == 0 && (!same || run.seen_ns != 0)) run.lost = true;
  }
  worker.plan_due = false;  // the answer is the plan
  outside_.answer(ticket, Reply(plan_of(worker)), {});
  publish(worker);
  schedule_due_ = true;
  schedule();
  next_tick_ns_ = std::min(next_tick_ns_, clock_.now_ns() + kNsPerSec);
}

void Core::worker_report(Ticket ticket, const std::string& peer, const bus::WorkerReport& report) {
  Worker* worker = worker_of(report.worker);
  if (worker == nullptr || worker->incarnation != report.incarnation || worker->state == Worker::State::kDown) {
    return outside_.answer(
        ticket, Error{Code::kNotFound, "worker " + in_quotes(report.worker) + " is not registered", "register again"},
        {});
  }
  worker->peer = peer;
  worker->heard_ns = clock_.now_ns();
  if (worker->state == Worker::State::kLost) {
    spdlog::info("worker {}: heard again", worker->name);
    worker->state = Worker::State::kUp;
    worker->plan_due = schedule_due_ = true;
  }
  worker->usable_bytes = sane_bytes(report.usable_bytes);
  const size_t ranks_before = worker->ranks.size();
  take_ranks(*worker, report.ranks);
  take_plugins(*worker, report.plugins);
  take_measures(report);
  take_tasks(*worker, report.tasks, report.leaving);
  if (worker->ranks.size() != ranks_before) schedule_due_ = true;
  outside_.answer(ticket, Reply(bus::Ack{}), {});
  if (report.leaving) worker_gone(*worker, Worker::State::kDown, "worker " + worker->name + " went down", false);
  publish(*worker);
  schedule();
}

void Core::take_ranks(Worker& worker, const std::vector<bus::TrainingState>& ranks) {
  const std::vector<bus::TrainingState> before = std::exchange(worker.ranks, {});
  for (const auto& rank : ranks) {
    if (worker.ranks.size() >= kMaxRanksOfWorker) break;
    if (!is_plain(rank.job) || !is_there(rank)) continue;
    if (jobs_.count(rank.job) == 0) {
      if (jobs_.size() >= 2 * kMaxJobs) continue;
      spdlog::info("job {}: first rank on {}", rank.job, worker.name);
      schedule_due_ = true;
    }
    job(rank.job).see_rank(rank, clock_.now_ns());
    // A worker that was started anew registers before its trainer has found it, and would give leases in held-out
    // iterations until something else is to be said to it.
    if (std::none_of(before.begin(), before.end(), [&](const auto& known) { return known.job == rank.job; })) {
      worker.plan_due = true;
    }
    worker.ranks.push_back(rank);
    worker.ranks.back().worker = worker.name;
    worker.ranks.back().framework = bounded(rank.framework, 64);
  }
}

void Core::take_plugins(Worker& worker, const std::vector<bus::PluginState>& plugins) {
  for (const auto& plugin : plugins) {
    if (!is_plain(plugin.name, kMaxFileName)) continue;
    if (plugin.state == "removed") {
      worker.plugins.erase(plugin.name);
      continue;
    }
    if (worker.plugins.count(plugin.name) == 0 && worker.plugins.size() >= kMaxPluginsOfWorker) continue;
    auto& known = worker.plugins[plugin.name] = plugin;
    known.worker = worker.name;
    known.reason = bounded(plugin.reason, kMaxReason);
  }
}

// A hash of the side tasks that could run beside the job's ranks, and where; 0: none.
uint64_t Core::side_tasks_of(const std::string& job) const {
  std::vector<std::string> found;
  for (const auto& [name, placed_ns] : live_) {
    const Task& task = tasks_.at(placed_ns);
    const auto& state = task.state();
    if (task.phase != Task::Phase::kPlaced || task.row.stopping || state.paused_by_user) continue;
    if (state.state != "PAUSED" && state.state != "RUNNING") continue;
    const auto worker = workers_.find(state.worker);
    if (worker == workers_.end() || !worker->second.up()) continue;
    const auto& ranks = worker->second.ranks;
    if (std::none_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.job == job; })) continue;
    std::string what = state.worker + ' ' + state.sha256;
    for (const auto& [key, value] : task.row.info.load.params) what += ' ' + key + '=' + value;
    found.push_back(std::move(what));
  }
  if (found.empty()) return 0;
  std::sort(found.begin(), found.end());
  std::string all;
  for (const auto& one : found) all += one + '\n';
  return std::max<uint64_t>(1, std::hash<std::string>{}(all));
}

void Core::take_measures(const bus::WorkerReport& report) {
  // A rank's last iterations may be reported after it has gone: any job that is known will do.
  for (const auto& iteration : report.iterations) {
    const auto job = jobs_.find(iteration.job);
    if (job != jobs_.end()) job->second.add_iteration(iteration, clock_.now_ns());
  }
  for (const auto& totals : report.bubbles) {
    const auto job = jobs_.find(totals.job);
    if (job != jobs_.end()) job->second.add_bubbles(totals);
  }
}

void Core::take_tasks(Worker& worker, const std::vector<bus::TaskReport>& reports, bool leaving) {
  worker.tasks.clear();
  for (const auto& report : reports) {
    if (worker.tasks.size() >= kMaxTasksOfWorker) break;
    if (!is_task_name(report.task)) continue;
    worker.tasks[report.task] = report;
  }
  // By value: ending a task can end up here again through schedule().
  const auto tasks = worker.tasks;
  for (const auto& [name, report] : tasks) take_task(worker, report, leaving);
}

void Core::take_task(Worker& worker, const bus::TaskReport& report, bool leaving) {
  const bool ended = report.state == "STOPPED";
  if (report.purpose == "profile") {
    const auto run = profile_runs_.find(report.task);
    if (run != profile_runs_.end() && run->second.worker == worker.name) return profile_report(run->second, report);
    if (!ended) worker.plan_due = true;  // of a manager before us: the plan does not name it, so it is stopped
    return;
  }
  Task* task = live_task(report.task);
  if (task != nullptr && task->phase == Task::Phase::kQueued && task->last_worker == worker.name && !ended &&
      is_of(*task, report)) {
    spdlog::info("task {}: still alive on {}", task->name(), worker.name);
    task->state().worker = worker.name;
    task->row.reserved_bytes = memory_need(*task);
    task->row.earlier = task->earlier_before;
    if (task->row.info.restarts > 0) --task->row.info.restarts;  // it was not started anew after all
    task->phase = Task::Phase::kCreating;
  }
  if (task == nullptr || !task->on_worker() || task->state().worker != worker.name) {
    if (!ended) worker.plan_due = true;
    return;
  }
  if (!is_of(*task, report)) return;  // of before it was replaced in the queue; it goes before the new one is made
  if (!ended) return update_from_report(*task, worker, report);
  // What is told of a run before the present one: the new one has been ordered, but has not been made yet.
  if (task->phase == Task::Phase::kCreating && !task->create_id.empty()) return;
  update_from_report(*task, worker, report);
  const auto& verdict = report.verdict;
  if (verdict.kind == "lost")
    return requeue(*task, verdict.reason.empty() ? "its processes were lost" : bounded(verdict.reason, kMaxReason),
                   true);
  if (verdict.kind == "stopped" && !task->row.stopping) {
    // Not the user's wish, so the worker's: it is going down, or it took the task for one that should not be there.
    task->not_before_ns = clock_.now_ns() + 2 * kNsPerSec;
    return requeue(*task, "worker " + worker.name + (leaving ? " went down" : " stopped it"), !leaving);
  }
  end_task(*task, verdict);
}

void Core::requeue_missing(Worker& worker, const std::string& reason, bool creating_too) {
  for (auto& [id, task] : tasks_) {
    if (!task.on_worker() || task.state().worker != worker.name || worker.tasks.count(task.name()) != 0) continue;
    if (task.phase == Task::Phase::kCreating && !creating_too) continue;
    requeue(task, reason, true);
  }
}

void Core::worker_gone(Worker& worker, Worker::State state, const std::string& reason, bool count) {
  spdlog::warn("worker {}: {}", worker.name, state == Worker::State::kDown ? "down" : "lost");
  worker.state = state;
  worker.ranks.clear();
  worker.tasks.clear();
  worker.plan_id.clear();
  for (auto& [id, task] : tasks_) {
    if (task.on_worker() && task.state().worker == worker.name) requeue(task, reason, count);
  }
  publish(worker);
  schedule_due_ = true;
}

bus::WorkerPlan Core::plan_of(const Worker& worker) const {
  bus::WorkerPlan plan;
  std::map<std::string, bool> named;
  for (const auto& rank : worker.ranks) {
    if (std::exchange(named[rank.job], true)) continue;
    const auto job = jobs_.find(rank.job);
    if (job == jobs_.end()) continue;
    for (auto& part : job->second.wire_plans()) plan.holdout.push_back(std::move(part));
  }
  for (const auto& [name, id] : live_) {
    const Task& task = tasks_.at(id);
    if (!task.on_worker() || task.state().worker != worker.name) continue;
    bus::TaskOrder order;
    order.task = name;
    order.order = task.order();
    plan.orders.push_back(order);
  }
  for (const auto& [name, run] : profile_runs_) {
    if (run.worker != worker.name) continue;
    bus::TaskOrder order;
    order.task = name;
    order.order = "run";
    plan.orders.push_back(order);
  }
  return plan;
}

void Core::worker_reply(const std::string& peer, const std::string& id, const std::optional<Error>& error,
                        const std::string& log) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  const Pending pending = found->second;
  Worker* worker = worker_of(pending.worker);
  // Only the one that was asked may answer. (A worker's address changes when it reconnects; then the order is simply
  // sent again.)
  if (peer != pending.peer) return;
  pending_.erase(found);
  switch (pending.kind) {
    case Pending::Kind::kLog: {
      const auto task = tasks_.find(pending.task);
      if (task == tasks_.end())
        return outside_.answer(pending.ticket, Error{Code::kNotFound, "the task is gone", {}}, {});
      return answer_task(pending.ticket, task->second, error ? "(" + error->text() + ")\n" : tail(log, kMaxLog));
    }
    case Pending::Kind::kOrder:
      if (error && worker != nullptr) worker->plan_due = true;
      return;
    case Pending::Kind::kPlan:
      if (worker == nullptr || worker->plan_id != id) return;
      worker->plan_id.clear();
      if (!error) return;
      spdlog::warn("worker {} refuses its plan: {}", worker->name, error->text());
      worker->plan_due = true;
      return;
    case Pending::Kind::kCreate:
      return create_reply(pending, error);
    case Pending::Kind::kReplace:
      return replace_reply(pending, error);
  }
}

void Core::fetch_plugin(Ticket ticket, const std::string& sha256) {
  auto bytes = content_.read(sha256);
  if (!bytes) return outside_.answer(ticket, bytes.error(), {});
  outside_.answer(ticket, Reply(bus::Ack{}), *bytes);
}

bus::WorkerState Core::state_of(const Worker& worker) const {
  bus::WorkerState state;
  state.worker = worker.name;
  state.host = worker.host;
  state.device = worker.device;
  state.state = worker.up() ? "up" : worker.state == Worker::State::kDown ? "down" : "lost";
  if (!worker.ranks.empty()) {
    state.job = worker.ranks.front().job;
    state.stage = static_cast<int32_t>(std::min<uint32_t>(worker.ranks.front().stage, INT32_MAX));
    state.replica = static_cast<int32_t>(std::min<uint32_t>(worker.ranks.front().replica, INT32_MAX));
  }
  state.memory_bytes = worker.memory_bytes;
  state.usable_bytes = worker.usable_bytes;
  state.tasks = static_cast<uint32_t>(std::count_if(live_.begin(), live_.end(), [&](const auto& entry) {
    const Task& task = tasks_.at(entry.second);
    return task.on_worker() && task.state().worker == worker.name;
  }));
  return state;
}

void Core::publish(Worker& worker) {
  const auto state = state_of(worker);
  const auto& old = worker.published;
  // Free memory moves all the time; a tenth of it is news.
  const bool memory = std::abs(static_cast<double>(state.usable_bytes - old.usable_bytes)) >
                      0.1 * static_cast<double>(old.usable_bytes);
  if (state.state == old.state && state.job == old.job && state.stage == old.stage && state.replica == old.replica &&
      state.tasks == old.tasks && state.memory_bytes == old.memory_bytes && !memory) {
    return;
  }
  worker.published = state;
  outside_.publish(state);
}

bus::WorkerInfo Core::info_of(const Worker& worker) const {
  bus::WorkerInfo info;
  info.state = state_of(worker);
  info.device_model = worker.model;
  info.pid = worker.pid;
  info.ranks = worker.ranks;
  info.sandbox = worker.sandbox;
  info.silent_ms = (clock_.now_ns() - worker.heard_ns) / kNsPerMs;
  return info;
}

std::vector<bus::WorkerInfo> Core::workers_info() const {
  std::vector<bus::WorkerInfo> infos;
  for (const auto& [name, worker] : workers_) infos.push_back(info_of(worker));
  return infos;
}

}  // namespace freeride::manager
