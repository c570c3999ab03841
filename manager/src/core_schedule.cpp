// From the queue to a worker: placement, creation.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "core.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Room above what the profile saw: a run is longer than its profile.
int64_t with_slack(int64_t peak_bytes) {
  return std::max(peak_bytes + peak_bytes / 4, peak_bytes + 64 * kMiB);
}

// What counts as the device's memory there, without what the worker adds for the process's context: the driver's figure
// contains that. Of a profile from before schema version 2 it is not known which memory it is.
int64_t peak_bytes(const bus::Profile& profile, const Worker& worker) {
  for (const char* where : {worker.on_gpu() ? "gpu" : "host", ""}) {
    if (const auto found = profile.peak_bytes.find(where); found != profile.peak_bytes.end())
      return std::max<int64_t>(0, found->second - worker.context_bytes);
  }
  return 0;
}

}  // namespace

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
    const bus::Profile* profile = profile_for(task, worker.model);
    if (profile == nullptr) continue;
    need = std::max(need, with_slack(peak_bytes(*profile, worker)));
    // One that came to no step has seen the memory of InitSideTask alone.
    if (profile->steps.p90_ns == 0) need = std::max(need, memory_cap(task.row.info.load));
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

bus::CreateTask Core::create_order(const Task& task, const Worker& worker) const {
  const auto& load = task.row.info.load;
  bus::CreateTask order;
  order.task = task.name();
  order.purpose = "run";
  order.plugin = load.plugin;
  order.sha256 = task.state().sha256;
  order.params = load.params;
  // On a GPU a task may hold what was reserved for it and no more: training's memory begins there.
  order.memory_limit_bytes = worker.on_gpu() ? memory_need(task) : memory_cap(load);
  order.steps = load.steps;
  order.priority = load.priority;
  order.when_idle = load.when_idle;
  order.network = load.network;
  order.start_paused = task.state().paused_by_user;
  order.instance = instance_of(task);
  order.revision = task.row.info.revision;
  // With the imperative interface there are no steps: what was measured are stretches between pauses.
  const auto interface = load.params.find("interface");
  const bool steps = interface == load.params.end() || interface->second != "imperative";
  if (const bus::Profile* profile = profile_for(task, worker.model); profile != nullptr && steps) {
    order.predicted_step_ns = profile->steps.p90_ns;
    for (const bus::Durations& piece : profile->pieces) order.predicted_pieces_ns.push_back(piece.p90_ns);
  }
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
