#include "capacity.hpp"

#include <algorithm>
#include <map>
#include <string>

#include "member.hpp"

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
  const int64_t largest = workers_.largest_bytes();
  return largest == 0 ? default_bytes_ : std::min(default_bytes_, largest / 2);
}

int64_t Capacity::need_bytes(const Task& task) const {
  if (task.load().memory_bytes > 0) return task.load().memory_bytes;
  if (task.load().no_profile) return cap_bytes(task.load());
  int64_t need = 0;
  for (const Worker* worker : workers_.kinds()) {
    const bus::Profile* profile = profiles_.find(task, worker->model);
    if (profile == nullptr) continue;
    need = std::max(need, with_slack(peak_bytes(*profile, *worker)));
    // One that came to no step has seen the memory of InitSideTask alone.
    if (profile->steps.p90_ns == 0) need = std::max(need, cap_bytes(task.load()));
  }
  return need > 0 ? need : cap_bytes(task.load());
}

policy::PlacementRequest request_of(const bus::Load& load) {
  policy::PlacementRequest request;
  request.job = load.job;
  request.stage = load.stage;
  request.replica = load.replica;
  request.memory_bytes = load.memory_bytes;
  request.when_idle = load.when_idle;
  request.any_job = load.any_job || is_member(load);
  return request;
}

policy::PlacementRequest Capacity::request_of(const Task& task) const {
  auto request = manager::request_of(task.load());
  request.memory_bytes = need_bytes(task);
  request.last_worker = task.row.info.last_worker;
  return request;
}

Capacity::Room Capacity::room_of(const Worker& worker, const Promised& profiles) const {
  Room room;
  Promised promised = profiles;
  for (const auto& [id, task] : tasks_.on(worker.name)) {
    promised.bytes += task->row.reserved_bytes;
    if (worker.tasks.count(task->name()) == 0) promised.unreported_bytes += task->row.reserved_bytes;
    ++room.tasks;
  }
  // It sees what others use, we see what we have promised.
  room.free_bytes = std::min(worker.memory_bytes - promised.bytes, worker.usable_bytes - promised.unreported_bytes);
  return room;
}

policy::DeviceView Capacity::view_of(const Worker& worker, const Promised& profiles) const {
  const Room room = room_of(worker, profiles);
  policy::DeviceView view;
  view.worker = worker.name;
  view.memory_bytes = worker.memory_bytes;
  view.free_bytes = room.free_bytes;
  view.tasks = room.tasks;
  view.other_process = worker.other_process;
  for (const auto& rank : worker.ranks)
    view.ranks.push_back({rank.job, rank.stage, rank.stages, rank.replica, rank.replicas, rank.state != "disabled"});
  return view;
}

void Capacity::add(const ProfileRun& run, const Worker& worker, Promised& promised) {
  promised.bytes += run.memory_bytes;
  if (worker.tasks.count(run.name) == 0) promised.unreported_bytes += run.memory_bytes;
}

Capacity::Promised Capacity::profiles_on(const Worker& worker) const {
  Promised profiles;
  for (const auto& [name, run] : runs_.all()) {
    if (run.worker == worker.name) add(run, worker, profiles);
  }
  return profiles;
}

std::vector<policy::DeviceView> Capacity::devices() const {
  std::map<std::string, Promised> profiles;
  for (const auto& [name, run] : runs_.all()) {
    if (const Worker* worker = workers_.find(run.worker)) add(run, *worker, profiles[run.worker]);
  }
  std::vector<policy::DeviceView> result;
  for (const auto& [name, worker] : workers_.all()) {
    if (!worker.up()) continue;
    const auto its = profiles.find(name);
    result.push_back(view_of(worker, its == profiles.end() ? Promised{} : its->second));
  }
  return result;
}

std::vector<policy::DeviceView> Capacity::device(const std::string& name) const {
  const Worker* worker = workers_.find(name);
  if (worker == nullptr || !worker->up()) return {};
  return {view_of(*worker, profiles_on(*worker))};
}

std::optional<Capacity::Room> Capacity::room_on(const std::string& name) const {
  const Worker* worker = workers_.find(name);
  if (worker == nullptr || !worker->up()) return std::nullopt;
  return room_of(*worker, profiles_on(*worker));
}

const policy::Placer& Capacity::attached() const {
  if (!attached_ || attached_version_ != workers_.version()) {
    attached_version_ = workers_.version();
    attached_ = std::make_unique<policy::Placer>(devices());
  }
  return *attached_;
}

}  // namespace freeride::manager
