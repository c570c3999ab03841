// From the queue to a worker: profile, placement, creation.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "core.hpp"
#include "freeride/base/sha256.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Every part with its length, so that no two lists of parts give the same text.
std::string profile_key(const std::string& sha256, const std::map<std::string, std::string>& params,
                        const std::string& model) {
  std::string text;
  const auto add = [&](const std::string& part) { text += std::to_string(part.size()) + ":" + part; };
  add(sha256);
  add(model);
  for (const auto& [key, value] : params) add(key), add(value);
  return sha256_hex(text);
}

// Room above what the profile saw: a run is longer than its profile.
int64_t with_slack(int64_t peak_bytes) {
  return std::max(peak_bytes + peak_bytes / 4, peak_bytes + 64 * kMiB);
}

}  // namespace

const Profile* Core::profile_for(const Task& task, const std::string& model) const {
  std::string& key = task.profile_keys[model];
  if (key.empty()) key = profile_key(task.state().sha256, task.row.info.load.params, model);
  const auto found = profiles_.find(key);
  return found == profiles_.end() ? nullptr : &found->second;
}

// Never more than half of the largest worker, so that a small machine can profile too.
int64_t Core::memory_cap(const bus::Load& load) const {
  if (load.memory_bytes > 0) return load.memory_bytes;
  int64_t largest = 0;
  for (const auto& [name, worker] : workers_) {
    if (worker.up()) largest = std::max(largest, worker.memory_bytes);
  }
  return largest == 0 ? config_.default_memory_bytes : std::min(config_.default_memory_bytes, largest / 2);
}

int64_t Core::memory_need(const Task& task) const {
  if (task.row.info.load.memory_bytes > 0) return task.row.info.load.memory_bytes;
  int64_t need = 0;
  for (const auto& [name, worker] : workers_) {
    if (!worker.up()) continue;
    if (const Profile* profile = profile_for(task, worker.model))
      need = std::max(need, with_slack(profile->peak_memory_bytes));
  }
  return need > 0 ? need : memory_cap(task.row.info.load);
}

policy::PlacementRequest Core::request_of(const Task& task) const {
  const auto& load = task.row.info.load;
  policy::PlacementRequest request;
  request.job = load.job;
  request.stage = load.stage;
  request.replica = load.replica;
  request.when_idle = load.when_idle;
  request.memory_bytes = memory_need(task);
  return request;
}

std::vector<policy::DeviceView> Core::device_views() const {
  std::map<std::string, policy::DeviceView> views;
  std::map<std::string, int64_t> unreported;  // reserved for what the worker does not know of yet
  for (const auto& [name, worker] : workers_) {
    if (!worker.up()) continue;
    policy::DeviceView view;
    view.worker = name;
    view.memory_bytes = view.free_bytes = worker.memory_bytes;
    for (const auto& rank : worker.ranks) {
      view.ranks.push_back({rank.job, rank.stage, rank.stages, rank.replica, rank.replicas, rank.state != "disabled"});
    }
    views[name] = std::move(view);
  }
  const auto reserve = [&](const std::string& worker, const std::string& task, int64_t bytes) {
    const auto view = views.find(worker);
    if (view == views.end()) return;
    view->second.free_bytes -= bytes;
    if (workers_.at(worker).tasks.count(task) == 0) unreported[worker] += bytes;
  };
  for (const auto& [name, id] : live_) {
    const Task& task = tasks_.at(id);
    if (!task.on_worker()) continue;
    reserve(task.state().worker, name, task.row.reserved_bytes);
    if (const auto view = views.find(task.state().worker); view != views.end()) ++view->second.tasks;
  }
  for (const auto& [name, run] : profile_runs_) reserve(run.worker, name, run.memory_bytes);
  std::vector<policy::DeviceView> result;
  for (auto& [name, view] : views) {
    // The smaller of our books and the worker's own word: it sees what others use, we see what we have promised.
    view.free_bytes = std::min(view.free_bytes, workers_.at(name).usable_bytes - unreported[name]);
    result.push_back(std::move(view));
  }
  return result;
}

void Core::schedule() {
  if (!schedule_due_) return;
  schedule_due_ = false;
  const int64_t now = clock_.now_ns();
  std::vector<policy::QueuedTask> queue;
  std::map<std::string, uint64_t> live_by_user;
  for (const auto& [name, id] : live_) {
    const Task& task = tasks_.at(id);
    const auto& load = task.row.info.load;
    if (task.on_worker()) ++live_by_user[load.user];
    if (task.phase == Task::Phase::kQueued) queue.push_back({static_cast<uint64_t>(id), load.priority, load.user});
  }
  auto views = device_views();
  for (const uint64_t id : policy::order_queue(std::move(queue), config_.queue_order, std::move(live_by_user))) {
    Task& task = tasks_.at(static_cast<int64_t>(id));
    if (task.phase != Task::Phase::kQueued) continue;
    if (task.not_before_ns > now) {
      schedule_due_ = true;
      continue;
    }
    if (place(task, views)) views = device_views();
  }
}

void Core::wait(Task& task, const std::string& reason) {
  set_state(task, "SUBMITTED", task.queued_since.empty() ? reason : task.queued_since + "; " + reason);
}

bool Core::place(Task& task, const std::vector<policy::DeviceView>& devices) {
  const auto placement = policy::place(request_of(task), devices);
  if (placement.kind == policy::Placement::Kind::kReject) {
    bus::Verdict verdict;
    verdict.kind = "rejected";
    verdict.reason = placement.reason;
    end_task(task, verdict);
    return false;
  }
  if (placement.kind == policy::Placement::Kind::kPlace) {
    Worker& worker = workers_.at(placement.worker);
    if (profile_for(task, worker.model) != nullptr) {
      task.create_tries = 0;
      task.state().worker = worker.name;
      create(task, worker, memory_need(task));
      return true;
    }
    return take_profile_for(task, worker.name, devices);
  }
  wait(task, placement.reason);
  // The wait can be used for the profile, on whichever worker has room.
  for (const auto& device : devices) {
    if (profile_for(task, workers_.at(device.worker).model) != nullptr) return false;
  }
  return take_profile_for(task, {}, devices);
}

bool Core::take_profile_for(Task& task, const std::string& preferred, const std::vector<policy::DeviceView>& devices) {
  const auto& load = task.row.info.load;
  const int64_t cap = memory_cap(load);
  for (const auto& [name, run] : profile_runs_) {
    const auto worker = workers_.find(run.worker);
    if (worker == workers_.end() || run.key != profile_key(task.state().sha256, load.params, worker->second.model))
      continue;
    if (!preferred.empty()) wait(task, "being profiled on " + run.worker);
    return false;
  }
  // One at a time on a worker: two would measure each other.
  const auto busy = [this](const std::string& worker) {
    return std::any_of(profile_runs_.begin(), profile_runs_.end(),
                       [&](const auto& run) { return run.second.worker == worker; });
  };
  const std::string wanted_model = preferred.empty() ? std::string() : workers_.at(preferred).model;
  const policy::DeviceView* chosen = nullptr;
  for (const auto& device : devices) {
    if (busy(device.worker) || device.free_bytes < cap) continue;
    if (!preferred.empty() && workers_.at(device.worker).model != wanted_model) continue;
    if (chosen == nullptr || device.worker == preferred ||
        (chosen->worker != preferred && device.tasks < chosen->tasks))
      chosen = &device;
  }
  if (chosen == nullptr) {
    if (!preferred.empty()) wait(task, "waiting to be profiled: no worker is free for it");
    return false;
  }
  const Worker& worker = workers_.at(chosen->worker);
  ProfileRun run;
  run.key = profile_key(task.state().sha256, load.params, worker.model);
  run.name = "profile-" + run.key.substr(0, 12) + "-" + std::to_string(started_ns_ % 1'000'000) + "-" +
             std::to_string(++profile_count_);
  run.worker = worker.name;
  run.plugin = load.plugin;
  run.sha256 = task.state().sha256;
  run.params = load.params;
  run.network = load.network;
  run.memory_bytes = cap;
  run.started_ns = clock_.now_ns();
  ProfileRun& kept = profile_runs_[run.name] = run;
  spdlog::info("task {}: being profiled on {}", task.name(), worker.name);
  if (!preferred.empty()) wait(task, "being profiled on " + worker.name);
  send_profile(kept);
  return true;
}

void Core::send_profile(ProfileRun& run) {
  const Worker& worker = workers_.at(run.worker);
  bus::CreateTask order;
  order.task = run.name;
  order.purpose = "profile";
  order.plugin = run.plugin;
  order.sha256 = run.sha256;
  order.params = run.params;
  order.network = run.network;
  order.memory_limit_bytes = run.memory_bytes;
  run.create_sent_ns = clock_.now_ns();
  if (auto id = outside_.send(worker.peer, order)) {
    pending_[*id] = {Pending::Kind::kCreate, worker.peer, worker.name, 0, run.name, 0, run.create_sent_ns};
  }
}

void Core::profile_report(ProfileRun& run, const bus::TaskReport& report) {
  run.seen_ns = clock_.now_ns();
  if (report.state != "STOPPED") return;
  const ProfileRun done = run;
  if (Worker* worker = worker_of(done.worker)) worker->plan_due = true;
  profile_runs_.erase(done.name);
  const auto& kind = report.verdict.kind;
  if (kind != "finished" && kind != "stopped")
    return profile_failed(done, report.verdict, kind == "lost" || kind == "evicted");
  Profile profile;
  profile.peak_memory_bytes = std::clamp<int64_t>(report.counters.peak_memory_bytes, 0, int64_t{1} << 50);
  if (report.counters.steps > 0) {
    profile.step_ns = std::max<int64_t>(report.counters.step_ns, 0) /
                      static_cast<int64_t>(std::min<uint64_t>(report.counters.steps, INT64_MAX));
  }
  profiles_[done.key] = profile;
  spdlog::info("profile of {} ({}): {} MiB, {:.3f} ms a step", done.plugin, done.sha256.substr(0, 12),
               profile.peak_memory_bytes / kMiB, static_cast<double>(profile.step_ns) / kNsPerMs);
  if (auto saved = store_->save_profile(done.key, profile, unix_ms_()); !saved) disk_trouble(saved.error());
  schedule_due_ = true;
}

void Core::profile_failed(const ProfileRun& run, bus::Verdict verdict, bool again) {
  verdict.reason = "while being profiled on " + run.worker + ": " + verdict.reason;
  schedule_due_ = true;
  std::vector<int64_t> concerned;
  for (const auto& [name, id] : live_) {
    const Task& task = tasks_.at(id);
    if (task.phase != Task::Phase::kQueued || task.state().sha256 != run.sha256 ||
        task.row.info.load.params != run.params)
      continue;
    // A task with a larger allowance than the profile had may do better on its own.
    if (!again && memory_cap(task.row.info.load) > run.memory_bytes) continue;
    concerned.push_back(id);
  }
  for (const int64_t id : concerned) {
    Task& task = tasks_.at(id);
    if (!again || ++task.profile_failures > config_.max_restarts) {
      end_task(task, verdict);
      continue;
    }
    task.not_before_ns = clock_.now_ns() + 2 * kNsPerSec;
    wait(task, bounded(verdict.reason, kMaxReason));
  }
}

bus::CreateTask Core::create_order(const Task& task, const Worker& worker) const {
  const auto& load = task.row.info.load;
  bus::CreateTask order;
  order.task = task.name();
  order.purpose = "run";
  order.plugin = load.plugin;
  order.sha256 = task.state().sha256;
  order.params = load.params;
  // On a GPU a task may hold what was reserved for it and no more: training's memory begins there.
  const bool gpu = worker.device.rfind("GPU-", 0) == 0;
  order.memory_limit_bytes = gpu ? memory_need(task) : memory_cap(load);
  order.steps = load.steps;
  order.priority = load.priority;
  order.when_idle = load.when_idle;
  order.network = load.network;
  order.start_paused = task.state().paused_by_user;
  order.instance = instance_of(task);
  order.revision = task.row.info.revision;
  if (const Profile* profile = profile_for(task, worker.model)) order.predicted_step_ns = profile->step_ns;
  return order;
}

void Core::create(Task& task, Worker& worker, int64_t reserved_bytes) {
  const bus::CreateTask order = create_order(task, worker);
  task.phase = Task::Phase::kCreating;
  task.row.reserved_bytes = reserved_bytes;
  task.create_sent_ns = clock_.now_ns();
  ++task.create_tries;
  if (task.create_tries == 1) {
    task.queued_since.clear();
    spdlog::info("task {}: placed on {}", task.name(), worker.name);
    set_state(task, "SUBMITTED", "being created on " + worker.name);
    save(task);
  }
  auto id = outside_.send(worker.peer, order);
  task.create_id = id ? *id : "unsent";
  if (id) pending_[*id] = {Pending::Kind::kCreate, worker.peer, worker.name, task.row.id, {}, 0, task.create_sent_ns};
}

void Core::create_reply(const Pending& pending, const std::optional<Error>& error) {
  if (!pending.profile.empty()) {
    const auto run = profile_runs_.find(pending.profile);
    if (run == profile_runs_.end()) return;
    if (!error || error->code == Code::kAlreadyExists) {
      run->second.seen_ns = clock_.now_ns();
      return;
    }
    const ProfileRun failed = run->second;
    profile_runs_.erase(run);
    bus::Verdict verdict;
    const bool later =
        error->code == Code::kUnavailable || error->code == Code::kTimeout || error->code == Code::kExhausted;
    verdict.kind = later ? "lost" : "rejected";
    verdict.reason = error->text();
    return profile_failed(failed, verdict, later);
  }
  const auto found = tasks_.find(pending.task);
  if (found == tasks_.end()) return;
  Task& task = found->second;
  if (task.phase != Task::Phase::kCreating || task.state().worker != pending.worker) return;
  if (error && error->code == Code::kAlreadyExists) {
    // Either it has taken our first try, then a report will name it; or it still has an ended task of that name, then
    // the plan makes it forget that one. Sending again in a while is right for both.
    if (Worker* worker = worker_of(pending.worker)) worker->plan_due = true;
    return;
  }
  if (!error) {
    // Taken. It counts as there from now on; if it never shows up in a report, it is missed like any other.
    task.create_id.clear();
    task.phase = Task::Phase::kPlaced;
    task.reported_ns = clock_.now_ns();
    return;
  }
  if (error->code == Code::kUnavailable || error->code == Code::kTimeout || error->code == Code::kExhausted) {
    task.not_before_ns = clock_.now_ns() + 5 * kNsPerSec;
    return requeue(task, "worker " + pending.worker + " cannot take it now: " + bounded(error->text(), kMaxReason),
                   false);
  }
  bus::Verdict verdict;
  verdict.kind = "rejected";
  verdict.reason = "worker " + pending.worker + ": " + error->text();
  end_task(task, verdict);
}

}  // namespace freeride::manager
