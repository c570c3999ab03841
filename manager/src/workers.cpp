#include "workers.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "freeride/base/about.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/policy/permission.hpp"
#include "freeride/policy/placement.hpp"
#include "phase_book.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

// More than any honest worker has; what goes beyond is dropped.
constexpr size_t kMaxTasksOfWorker = 512;
constexpr size_t kMaxRanksOfWorker = 64;
constexpr size_t kMaxPluginsOfWorker = 1024;
constexpr int64_t kMaxMemory = int64_t{1} << 50;
constexpr int64_t kForgetAfter = 600 * kNsPerSec;

int64_t sane_bytes(int64_t bytes) {
  return std::clamp<int64_t>(bytes, 0, kMaxMemory);
}

bool is_there(const bus::TrainingState& rank) {
  return rank.state != "gone" && rank.state != "lost";
}

const char* name_of(Worker::State state) {
  switch (state) {
    case Worker::State::kUp:
      return "up";
    case Worker::State::kDown:
      return "down";
    case Worker::State::kLost:
      return "lost";
  }
  return "";
}

}  // namespace

bool Worker::has_rank_of(const std::string& job) const {
  return std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return rank.job == job; });
}

bool Worker::has_content(const std::string& sha256) const {
  return std::any_of(plugins.begin(), plugins.end(),
                     [&](const auto& one) { return one.second.state != "rejected" && one.second.sha256 == sha256; });
}

Worker* Workers::find(const std::string& name) {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

const Worker* Workers::find(const std::string& name) const {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second;
}

Worker* Workers::find_up(const std::string& name) {
  Worker* worker = find(name);
  return worker != nullptr && worker->up() ? worker : nullptr;
}

bool Workers::any_up() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) { return entry.second.up(); });
}

std::vector<const Worker*> Workers::called(const std::string& text) const {
  if (const Worker* named = find(text)) return {named};
  std::vector<const Worker*> found;
  for (const auto& [name, worker] : workers_) {
    if (worker.is_called(text)) found.push_back(&worker);
  }
  return found;
}

std::vector<std::string> Workers::reporting(const std::string& task) const {
  const auto found = reporting_.find(task);
  if (found == reporting_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

void Workers::look_at_kinds() const {
  if (std::exchange(kinds_of_version_, version_) == version_) return;
  kinds_.clear();
  largest_bytes_ = 0;
  std::set<std::tuple<std::string, int64_t, bool>> seen;
  for (const auto& [name, worker] : workers_) {
    if (!worker.up()) continue;
    largest_bytes_ = std::max(largest_bytes_, worker.memory_bytes);
    if (seen.emplace(worker.model, worker.context_bytes, worker.on_gpu()).second) kinds_.push_back(&worker);
  }
}

const std::vector<const Worker*>& Workers::kinds() const {
  look_at_kinds();
  return kinds_;
}

int64_t Workers::largest_bytes() const {
  look_at_kinds();
  return largest_bytes_;
}

void Workers::plan_is_due(const std::string& name) {
  if (Worker* worker = find(name)) worker->plan_due = true;
}

Result<Workers::Registered> Workers::register_worker(const std::string& peer, const bus::RegisterWorker& news,
                                                     bool here) {
  if (!is_plain(news.worker) || !is_plain(news.incarnation))
    return Error{Code::kInvalidArgument, "a worker must give its name and incarnation", {}};
  if (workers_.count(news.worker) == 0 && workers_.size() >= most_) {
    return Error{Code::kExhausted, "there are " + std::to_string(most_) + " workers already",
                 "start freeride-manager with a larger --max-workers"};
  }
  ++version_;
  Worker& worker = workers_[news.worker];
  const bool same = worker.incarnation == news.incarnation;
  spdlog::info("{}: {} (pid {}, {} tasks, {} ranks)", about_worker(news.worker), same ? "back" : "registered", news.pid,
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
  worker.number = news.number;
  worker.plan_id.clear();
  // "own", and from Link the id that this host has for the manager, where the worker is on it.
  worker.file_users = news.file_users == "all" ? news.file_users : "";
  if (news.file_users.rfind("own", 0) == 0)
    worker.file_users = news.worker.substr(0, news.worker.rfind(':')) + news.file_users.substr(3);
  worker.programs = news.programs;
  worker.here = here || policy::host_of_worker(news.worker) == host_id();
  worker.drained = 0;
  worker.not_empty.clear();
  worker.plugins.clear();
  take_ranks(worker, news.ranks);
  take_plugins(worker, news.plugins);
  take_tasks(worker, news.tasks);
  due_.raised = true;
  return Registered{&worker, same};
}

Result<Worker*> Workers::take_report(const std::string& peer, const bus::WorkerReport& report) {
  Worker* worker = find(report.worker);
  if (worker == nullptr || worker->incarnation != report.incarnation || worker->state == Worker::State::kDown)
    return Error{Code::kNotFound, "worker " + in_quotes(report.worker) + " is not registered", "register again"};
  worker->peer = peer;
  worker->heard_ns = clock_.now_ns();
  worker->number = std::max(worker->number, report.number);
  if (worker->state == Worker::State::kLost) {
    spdlog::info("{}: heard again", about_worker(worker->name));
    worker->state = Worker::State::kUp;
    ++version_;
    worker->plan_due = due_.raised = true;
  }
  worker->usable_bytes = sane_bytes(report.usable_bytes);
  worker->drained = report.drained;
  worker->not_empty = bounded(report.not_empty, kMaxReason);
  if (std::exchange(worker->other_process, report.other_process) != report.other_process) due_.raised = true;
  const size_t ranks_before = worker->ranks.size();
  take_ranks(*worker, report.ranks);
  if (worker->ranks.size() != ranks_before) due_.raised = true;
  take_plugins(*worker, report.plugins);
  take_tasks(*worker, report.tasks);
  due_.changed.insert(worker->name);
  return worker;
}

void Workers::take_ranks(Worker& worker, const std::vector<bus::TrainingState>& ranks) {
  const std::vector<bus::TrainingState> before = std::exchange(worker.ranks, {});
  for (bus::TrainingState rank : ranks) {  // first: a rank that has left a place may be in another one
    if (is_there(rank)) continue;
    rank.worker = worker.name;
    ranks_.see(rank, worker.host, clock_.now_ns());
  }
  for (const auto& rank : ranks) {
    if (worker.ranks.size() >= kMaxRanksOfWorker) break;
    if (!is_plain(rank.job) || !is_there(rank)) continue;
    const bool first = !jobs_.known(rank.job);
    if (!jobs_.see_rank(rank)) continue;
    if (first) {
      spdlog::info("{}: first rank on {}", about_job(rank.job), worker.name);
      due_.raised = true;
    }
    // A worker that was started anew registers before its trainer has found it, and would give leases in held-out
    // iterations until something else is to be said to it.
    if (std::none_of(before.begin(), before.end(), [&](const auto& known) { return known.job == rank.job; })) {
      worker.plan_due = true;
    }
    worker.ranks.push_back(rank);
    worker.ranks.back().worker = worker.name;
    worker.ranks.back().framework = bounded(rank.framework, 64);
    worker.ranks.back().phase = bounded(rank.phase, PhaseBook::kMostNameBytes);
    ranks_.see(worker.ranks.back(), worker.host, clock_.now_ns());
  }
  for (const auto& rank : before) {
    if (std::none_of(worker.ranks.begin(), worker.ranks.end(),
                     [&](const auto& one) { return one.key() == rank.key(); }))
      ranks_.lose(rank, clock_.now_ns());
  }
  const auto same = [](const bus::TrainingState& a, const bus::TrainingState& b) {
    return a.job == b.job && a.stage == b.stage && a.stages == b.stages && a.replica == b.replica &&
           a.replicas == b.replicas && (a.state == "disabled") == (b.state == "disabled");
  };
  if (!std::equal(before.begin(), before.end(), worker.ranks.begin(), worker.ranks.end(), same)) ++version_;
}

void Workers::take_plugins(Worker& worker, const std::vector<bus::PluginState>& plugins) {
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

void Workers::take_tasks(Worker& worker, const std::vector<bus::TaskReport>& reports) {
  std::map<std::string, bus::TaskReport> tasks;
  for (const auto& report : reports) {
    if (tasks.size() >= kMaxTasksOfWorker) break;
    if (is_task_name(report.task)) tasks[report.task] = report;
  }
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::equal(tasks.begin(), tasks.end(), worker.tasks.begin(), worker.tasks.end(), same)) {
    forget_tasks(worker);
    for (const auto& [name, report] : tasks) reporting_[name].insert(worker.name);
  }
  worker.tasks = std::move(tasks);
}

void Workers::forget_tasks(Worker& worker) {
  for (const auto& [name, report] : worker.tasks) {
    const auto its = reporting_.find(name);
    if (its == reporting_.end()) continue;
    its->second.erase(worker.name);
    if (its->second.empty()) reporting_.erase(its);
  }
  worker.tasks.clear();
}

void Workers::gone(Worker& worker, Worker::State state) {
  spdlog::warn("{}: {}", about_worker(worker.name), name_of(state));
  worker.state = state;
  ++version_;
  for (const auto& rank : worker.ranks) ranks_.lose(rank, clock_.now_ns());
  worker.ranks.clear();
  forget_tasks(worker);
  worker.plan_id.clear();
  due_.raised = true;
}

std::vector<Worker*> Workers::silent(int64_t silence_ns) {
  std::vector<Worker*> found;
  for (auto& [name, worker] : workers_) {
    if (worker.up() && clock_.now_ns() - worker.heard_ns >= silence_ns) found.push_back(&worker);
  }
  return found;
}

void Workers::excuse(int64_t now_ns) {
  for (auto& [name, worker] : workers_) worker.heard_ns = std::max(worker.heard_ns, now_ns);
}

void Workers::forget_old(int64_t now) {
  const auto old = [now](const auto& entry) {
    return !entry.second.up() && now - entry.second.heard_ns > kForgetAfter;
  };
  if (std::erase_if(workers_, old) > 0) ++version_;
  ranks_.forget_old(now);
}

std::vector<bus::RankInfo> Workers::ranks(const std::string& job) const {
  if (job.empty()) return ranks_.list({}, clock_.now_ns());
  std::vector<bus::RankInfo> found;
  for (const auto& one : policy::meant_jobs(job, ranks_.jobs())) {
    for (auto& rank : ranks_.list(one, clock_.now_ns())) found.push_back(std::move(rank));
  }
  return found;
}

bus::WorkerState Workers::state_of(const Worker& worker) const {
  bus::WorkerState state;
  state.worker = worker.name;
  state.host = worker.host;
  state.device = worker.device;
  state.state = name_of(worker.state);
  if (!worker.ranks.empty()) {
    state.job = worker.ranks.front().job;
    state.stage = static_cast<int32_t>(std::min<uint32_t>(worker.ranks.front().stage, INT32_MAX));
    state.replica = static_cast<int32_t>(std::min<uint32_t>(worker.ranks.front().replica, INT32_MAX));
  }
  state.memory_bytes = worker.memory_bytes;
  state.usable_bytes = worker.usable_bytes;
  state.tasks = tasks_.count_on(worker.name);
  return state;
}

void Workers::publish(Worker& worker) {
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

std::vector<bus::WorkerInfo> Workers::infos() const {
  std::vector<bus::WorkerInfo> infos;
  for (const auto& [name, worker] : workers_) {
    bus::WorkerInfo info;
    info.state = state_of(worker);
    info.device_model = worker.model;
    info.pid = worker.pid;
    info.ranks = worker.ranks;
    info.sandbox = worker.sandbox;
    info.drained = worker.drain != 0;
    info.silent_ms = (clock_.now_ns() - worker.heard_ns) / kNsPerMs;
    infos.push_back(std::move(info));
  }
  return infos;
}

}  // namespace freeride::manager
