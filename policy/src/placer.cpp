#include "freeride/policy/placer.hpp"

#include <algorithm>

#include "freeride/base/names.hpp"
#include "freeride/policy/permission.hpp"

namespace freeride::policy {
namespace {
std::string mib(int64_t bytes) {
  return std::to_string(bytes / (int64_t{1} << 20)) + " MiB";
}

std::string range(uint32_t count) {
  return count <= 1 ? "0" : "0-" + std::to_string(count - 1);
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > 8 ? text + ", ..." : text;
}

// "stage 3, replica 1 of job gpt": what is being looked for.
std::string wanted(const PlacementRequest& request) {
  std::string text = request.stage >= 0 ? " with stage " + std::to_string(request.stage) : "";
  if (request.replica >= 0) text += (text.empty() ? " with replica " : ", replica ") + std::to_string(request.replica);
  if (!request.job.empty()) text += (text.empty() ? " of job " : ", of job ") + request.job;
  return text;
}

bool matches(const AttachedRank& rank, const std::string& job, int32_t stage, int32_t replica) {
  return rank.job == job && (stage < 0 || rank.stage == static_cast<uint32_t>(stage)) &&
         (replica < 0 || rank.replica == static_cast<uint32_t>(replica));
}

// A rank that says it is stage 5 of 4 is taken at its higher word.
uint32_t count_with(uint32_t number, uint32_t count) {
  return std::max(count, number == UINT32_MAX ? number : number + 1);
}

Placement wait(Why why, std::string what = {}) {
  return {Placement::Kind::kWait, {}, why, std::move(what)};
}

bool any_will_do(const PlacementRequest& request) {
  return request.any_job && request.job.empty();
}

}  // namespace

Placer::Placer(std::vector<DeviceView> devices, std::vector<std::string> attached)
    : devices_(std::move(devices)), jobs_(std::move(attached)), groups_of_(devices_.size()) {
  const auto by_name = [](const DeviceView& a, const DeviceView& b) { return a.worker < b.worker; };
  if (!std::is_sorted(devices_.begin(), devices_.end(), by_name)) std::sort(devices_.begin(), devices_.end(), by_name);
  for (size_t n = 0; n < devices_.size(); ++n) {
    if (!largest_ || devices_[n].memory_bytes > devices_[*largest_].memory_bytes) largest_ = n;
    for (const auto& rank : devices_[n].ranks) {
      Shape& shape = shapes_[rank.job];
      shape.stages = std::max(shape.stages, count_with(rank.stage, rank.stages));
      shape.replicas = std::max(shape.replicas, count_with(rank.replica, rank.replicas));
      if (shape.devices.empty() || shape.devices.back() != n) shape.devices.push_back(n);
    }
  }
  for (const auto& [job, shape] : shapes_) jobs_.push_back(job);
  std::sort(jobs_.begin(), jobs_.end());
  jobs_.erase(std::unique(jobs_.begin(), jobs_.end()), jobs_.end());
}

Placer::Place Placer::place_of(size_t device) const {
  return {devices_[device].tasks, -devices_[device].free_bytes, device};
}

void Placer::add(Group& group, size_t device) {
  group.open.insert(place_of(device));
  groups_of_[device].push_back(&group);
  if (!group.largest || devices_[device].memory_bytes > devices_[*group.largest].memory_bytes) group.largest = device;
}

// Devices without a trainer.
Placer::Group& Placer::idle() {
  if (idle_) return *idle_;
  idle_.emplace();
  for (size_t n = 0; n < devices_.size(); ++n) {
    ++looks_;
    if (!devices_[n].ranks.empty()) continue;
    if (devices_[n].may_be_in_use()) {
      idle_->in_use = n;
    } else {
      add(*idle_, n);
    }
  }
  return *idle_;
}

Placer::Group& Placer::group_of(const Wish& wish) {
  const auto [known, fresh] = groups_.try_emplace(wish);
  Group& group = known->second;
  if (!fresh) return group;
  const auto& [job, stage, replica] = wish;
  const auto shape = shapes_.find(job);
  if (shape == shapes_.end()) return group;
  for (const size_t n : shape->second.devices) {
    ++looks_;
    const auto& ranks = devices_[n].ranks;
    const auto rank = std::find_if(
        ranks.begin(), ranks.end(),
        [&, job = job, stage = stage, replica = replica](const auto& r) { return matches(r, job, stage, replica); });
    if (rank == ranks.end()) continue;
    // One rank whose hook is off blocks every lease of its device.
    if (std::all_of(ranks.begin(), ranks.end(), [](const AttachedRank& r) { return r.hook_on; })) {
      add(group, n);
    } else {
      group.off = rank->stage;
    }
  }
  return group;
}

std::optional<size_t> Placer::device_of(const std::string& worker) const {
  const auto found =
      std::lower_bound(devices_.begin(), devices_.end(), worker,
                       [](const DeviceView& view, const std::string& name) { return view.worker < name; });
  if (found == devices_.end() || found->worker != worker) return std::nullopt;
  return static_cast<size_t>(found - devices_.begin());
}

void Placer::put(const std::string& worker, int64_t bytes, uint32_t tasks) {
  if (const auto device = device_of(worker))
    change(*device, devices_[*device].free_bytes - bytes, devices_[*device].tasks + tasks);
}

void Placer::set(const std::string& worker, int64_t free_bytes, uint32_t tasks) {
  if (const auto device = device_of(worker)) change(*device, free_bytes, tasks);
}

void Placer::change(size_t device, int64_t free_bytes, uint32_t tasks) {
  DeviceView& view = devices_[device];
  if (view.free_bytes == free_bytes && view.tasks == tasks) return;
  const Place before = place_of(device);
  view.free_bytes = free_bytes;
  view.tasks = tasks;
  for (Group* group : groups_of_[device]) {
    group->open.erase(before);
    group->open.insert(place_of(device));
  }
}

// Of those with the same number of tasks the first has the most free memory: where that is too little, it is with all.
std::optional<Placer::Place> Placer::best_of(const Group& group, int64_t bytes) {
  for (auto at = group.open.begin(); at != group.open.end();) {
    ++looks_;
    const auto& [tasks, less_free, device] = *at;
    if (-less_free >= bytes) return *at;
    if (tasks == UINT32_MAX) break;
    at = group.open.lower_bound({tasks + 1, INT64_MIN, 0});
  }
  return std::nullopt;
}

// Of devices with so many tasks the one that the task was on, else the best one of that host.
std::optional<Placer::Place> Placer::where_it_was(const PlacementRequest& request, const std::vector<Group*>& groups,
                                                  uint32_t tasks) {
  std::optional<Place> best;
  const std::string host(host_of_worker(request.last_worker));
  const std::string first = host.empty() ? request.last_worker : host + ":";
  auto view = std::lower_bound(devices_.begin(), devices_.end(), first,
                               [](const DeviceView& one, const std::string& name) { return one.worker < name; });
  for (; view != devices_.end() && view->worker.rfind(first, 0) == 0; ++view) {
    ++looks_;
    const auto device = static_cast<size_t>(view - devices_.begin());
    if (view->tasks != tasks || view->free_bytes < request.memory_bytes) continue;
    const bool open = std::any_of(groups.begin(), groups.end(),
                                  [&](const Group* group) { return group->open.count(place_of(device)) != 0; });
    if (!open) continue;
    if (view->worker == request.last_worker) return place_of(device);
    if (!host.empty() && (!best || place_of(device) < *best)) best = place_of(device);
  }
  return best;
}

// Algorithm 1 proper, over the devices that match.
Placement Placer::pick(const PlacementRequest& request, const std::vector<Group*>& groups) {
  std::optional<Place> best;
  for (const Group* group : groups) {
    const auto its = best_of(*group, request.memory_bytes);
    if (its && (!best || *its < *best)) best = its;
  }
  if (best && !request.last_worker.empty()) best = where_it_was(request, groups, std::get<0>(*best)).value_or(*best);
  if (best) return {Placement::Kind::kPlace, devices_[std::get<2>(*best)].worker, Why::kNone, {}};
  const DeviceView *largest = nullptr, *freest = nullptr;
  for (const Group* group : groups) {
    if (group->open.empty()) continue;
    const DeviceView& one = devices_[*group->largest];
    if (largest == nullptr || one.memory_bytes > largest->memory_bytes) largest = &one;
    for (auto at = group->open.begin(); at != group->open.end();
         at = group->open.lower_bound({std::get<0>(*at) + 1, INT64_MIN, 0})) {
      ++looks_;
      const DeviceView& view = devices_[std::get<2>(*at)];
      if (freest == nullptr || view.free_bytes > freest->free_bytes) freest = &view;
      if (std::get<0>(*at) == UINT32_MAX) break;
    }
  }
  if (largest == nullptr || freest == nullptr)
    return {Placement::Kind::kWait, {}, Why::kNoTrainer, {}};  // there is none that is open
  if (largest->memory_bytes < request.memory_bytes) {
    return {Placement::Kind::kReject,
            {},
            Why::kNone,
            "needs " + mib(request.memory_bytes) + " of memory; the largest matching worker, " + largest->worker +
                ", has " + mib(largest->memory_bytes)};
  }
  return wait(Why::kNoMemory, "needs " + mib(request.memory_bytes) + ", " + freest->worker + " has " +
                                  mib(std::max<int64_t>(freest->free_bytes, 0)) + " free");
}

std::optional<std::string> Placer::missing_part(const PlacementRequest& request, const std::string& job) const {
  const auto found = shapes_.find(job);
  if (found == shapes_.end()) return std::nullopt;
  const Shape& shape = found->second;
  if (request.stage >= 0 && static_cast<uint32_t>(request.stage) >= shape.stages) {
    return "job " + job + " has no stage " + std::to_string(request.stage) + ": its stages are " + range(shape.stages);
  }
  if (request.replica >= 0 && static_cast<uint32_t>(request.replica) >= shape.replicas) {
    return "job " + job + " has no replica " + std::to_string(request.replica) + ": its replicas are " +
           range(shape.replicas);
  }
  return std::nullopt;
}

Placement Placer::place(const PlacementRequest& request) {
  if (devices_.empty()) return wait(Why::kNoWorker);
  std::vector<Group*> groups;
  const bool anywhere = request.when_idle && request.job.empty() && request.stage < 0 && request.replica < 0;
  if (anywhere && !idle().open.empty()) groups.push_back(&idle());
  const auto meant = meant_jobs(request.job, jobs_);
  if (meant.size() > 1 && any_will_do(request)) {
    for (const std::string& job : meant) {
      Group& its = group_of({job, std::max(request.stage, -1), std::max(request.replica, -1)});
      if (!its.open.empty()) groups.push_back(&its);
    }
    if (groups.empty()) return wait(Why::kNoTrainer, "a trainer" + wanted(request));
    return pick(request, groups);
  }
  if (meant.size() > 1 && groups.empty()) {
    return wait(Why::kNoTrainer, "a choice: several jobs " +
                                     (request.job.empty() ? "are attached" : "are called " + request.job) + " (" +
                                     join(meant) + "); load it with --job or --any-job");
  }
  const std::string job = meant.size() == 1 ? meant.front() : request.job;
  if (!job.empty()) {
    if (groups.empty()) {
      if (auto missing = missing_part(request, job))
        return wait(Why::kNoTrainer, "a trainer" + wanted(request) + "; " + *missing);
    }
    Group& its = group_of({job, std::max(request.stage, -1), std::max(request.replica, -1)});
    if (groups.empty() && its.open.empty() && its.off)
      return wait(Why::kInactive, "job " + job + ", stage " + std::to_string(*its.off));
    if (!its.open.empty()) groups.push_back(&its);
  }
  if (groups.empty() && anywhere && idle().in_use) return wait(Why::kOtherProcess, devices_[*idle().in_use].worker);
  if (groups.empty()) return wait(Why::kNoTrainer, "a trainer" + wanted(request));
  return pick(request, groups);
}

Status Placer::check(const PlacementRequest& request) const {
  const auto meant = meant_jobs(request.job, jobs_);
  const bool anywhere = any_will_do(request) || (request.when_idle && request.stage < 0 && request.replica < 0);
  if (meant.size() > 1 && !anywhere) {
    return Error{Code::kInvalidArgument,
                 "several training jobs are " + (request.job.empty() ? "attached" : "called " + request.job) + ": " +
                     join(meant),
                 "say which with --job, or take any with --any-job"};
  }
  const std::string job = meant.size() == 1 ? meant.front() : request.job;
  if (!job.empty()) {
    if (auto missing = missing_part(request, job))
      return Error{Code::kInvalidArgument, *missing, "choose one of those, or none for any"};
  }
  if (largest_ && devices_[*largest_].memory_bytes < request.memory_bytes) {
    return Error{Code::kRejected,
                 "the task asks for " + mib(request.memory_bytes) + " of memory; the largest worker, " +
                     devices_[*largest_].worker + ", has " + mib(devices_[*largest_].memory_bytes),
                 "ask for less with --memory"};
  }
  return {};
}

}  // namespace freeride::policy
