#include "capacity.hpp"

#include <algorithm>
#include <map>
#include <string>

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

int64_t Capacity::cap_bytes(const bus::Load& load) const {
  if (load.memory_bytes > 0) return load.memory_bytes;
  int64_t largest = 0;
  for (const auto& [name, worker] : workers_.all()) {
    if (worker.up()) largest = std::max(largest, worker.memory_bytes);
  }
  return largest == 0 ? default_bytes_ : std::min(default_bytes_, largest / 2);
}

int64_t Capacity::need_bytes(const Task& task) const {
  if (task.load().memory_bytes > 0) return task.load().memory_bytes;
  int64_t need = 0;
  for (const auto& [name, worker] : workers_.all()) {
    if (!worker.up()) continue;
    const bus::Profile* profile = profiles_.find(task, worker.model);
    if (profile == nullptr) continue;
    need = std::max(need, with_slack(peak_bytes(*profile, worker)));
    // One that came to no step has seen the memory of InitSideTask alone.
    if (profile->steps.p90_ns == 0) need = std::max(need, cap_bytes(task.load()));
  }
  return need > 0 ? need : cap_bytes(task.load());
}

policy::PlacementRequest Capacity::request_of(const Task& task) const {
  const auto& load = task.load();
  policy::PlacementRequest request;
  request.job = load.job;
  request.stage = load.stage;
  request.replica = load.replica;
  request.when_idle = load.when_idle;
  request.memory_bytes = need_bytes(task);
  return request;
}

std::vector<policy::DeviceView> Capacity::devices() const {
  std::map<std::string, policy::DeviceView> views;
  std::map<std::string, int64_t> unreported;  // reserved for what the worker does not know of yet
  for (const auto& [name, worker] : workers_.all()) {
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
  for (const auto& [name, task] : tasks_.live()) {
    if (!task->on_worker()) continue;
    reserve(task->state().worker, name, task->row.reserved_bytes);
    if (const auto view = views.find(task->state().worker); view != views.end()) ++view->second.tasks;
  }
  for (const auto& [name, run] : runs_.all()) reserve(run.worker, name, run.memory_bytes);
  std::vector<policy::DeviceView> result;
  for (auto& [name, view] : views) {
    // It sees what others use, we see what we have promised.
    view.free_bytes = std::min(view.free_bytes, workers_.at(name).usable_bytes - unreported[name]);
    result.push_back(std::move(view));
  }
  return result;
}

}  // namespace freeride::manager
