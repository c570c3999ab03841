#include "freeride/policy/placement.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "freeride/base/names.hpp"

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

struct JobShape {
  bool attached = false;
  uint32_t stages = 0, replicas = 0;
};

JobShape shape_of(const std::string& job, const std::vector<DeviceView>& devices) {
  JobShape shape;
  for (const auto& device : devices) {
    for (const auto& rank : device.ranks) {
      if (rank.job != job) continue;
      shape.attached = true;
      // A rank that says it is stage 5 of 4 is taken at its higher word.
      shape.stages = std::max({shape.stages, rank.stages, rank.stage == UINT32_MAX ? rank.stage : rank.stage + 1});
      shape.replicas =
          std::max({shape.replicas, rank.replicas, rank.replica == UINT32_MAX ? rank.replica : rank.replica + 1});
    }
  }
  return shape;
}

std::optional<std::string> missing_part(const PlacementRequest& request, const std::string& job,
                                        const JobShape& shape) {
  if (request.stage >= 0 && static_cast<uint32_t>(request.stage) >= shape.stages) {
    return "job " + job + " has no stage " + std::to_string(request.stage) + ": its stages are " + range(shape.stages);
  }
  if (request.replica >= 0 && static_cast<uint32_t>(request.replica) >= shape.replicas) {
    return "job " + job + " has no replica " + std::to_string(request.replica) + ": its replicas are " +
           range(shape.replicas);
  }
  return std::nullopt;
}

bool matches(const AttachedRank& rank, const std::string& job, const PlacementRequest& request) {
  return rank.job == job && (request.stage < 0 || rank.stage == static_cast<uint32_t>(request.stage)) &&
         (request.replica < 0 || rank.replica == static_cast<uint32_t>(request.replica));
}

bool better(const DeviceView& a, const DeviceView& b) {
  if (a.tasks != b.tasks) return a.tasks < b.tasks;
  if (a.free_bytes != b.free_bytes) return a.free_bytes > b.free_bytes;
  return a.worker < b.worker;
}

Placement wait(Why why, std::string what = {}) {
  return {Placement::Kind::kWait, {}, why, std::move(what)};
}

// Algorithm 1 proper, over the devices that match.
Placement pick(const PlacementRequest& request, const std::vector<const DeviceView*>& candidates) {
  const DeviceView* best = nullptr;
  const DeviceView* largest = candidates.front();
  const DeviceView* freest = candidates.front();
  for (const DeviceView* device : candidates) {
    if (device->memory_bytes > largest->memory_bytes) largest = device;
    if (device->free_bytes > freest->free_bytes) freest = device;
    if (device->free_bytes < request.memory_bytes) continue;
    if (best == nullptr || better(*device, *best)) best = device;
  }
  if (best != nullptr) return {Placement::Kind::kPlace, best->worker, Why::kNone, {}};
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

}  // namespace

std::vector<std::string> attached_jobs(const std::vector<DeviceView>& devices) {
  std::set<std::string> jobs;
  for (const auto& device : devices) {
    for (const auto& rank : device.ranks) jobs.insert(rank.job);
  }
  return {jobs.begin(), jobs.end()};
}

std::vector<std::string> meant_jobs(const std::string& wanted, const std::vector<std::string>& jobs) {
  if (wanted.empty()) return jobs;
  if (std::find(jobs.begin(), jobs.end(), wanted) != jobs.end()) return {wanted};
  std::vector<std::string> meant;
  std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(meant),
               [&](const std::string& job) { return means_job(wanted, job); });
  return meant;
}

Placement place(const PlacementRequest& request, const std::vector<DeviceView>& devices) {
  if (devices.empty()) return wait(Why::kNoWorker);
  std::vector<const DeviceView*> candidates;
  const bool anywhere = request.when_idle && request.job.empty() && request.stage < 0 && request.replica < 0;
  for (const auto& device : devices) {
    if (anywhere && device.ranks.empty()) candidates.push_back(&device);
  }
  const auto jobs = meant_jobs(request.job, attached_jobs(devices));
  if (jobs.size() > 1 && candidates.empty()) {
    return wait(Why::kNoTrainer, "a choice: several jobs " +
                                     (request.job.empty() ? "are attached" : "are called " + request.job) + " (" +
                                     join(jobs) + "); load it with --job");
  }
  const std::string job = jobs.size() == 1 ? jobs.front() : request.job;
  if (!job.empty()) {
    const JobShape shape = shape_of(job, devices);
    if (shape.attached && candidates.empty()) {
      if (auto missing = missing_part(request, job, shape))
        return wait(Why::kNoTrainer, "a trainer" + wanted(request) + "; " + *missing);
    }
    const AttachedRank* off = nullptr;
    for (const auto& device : devices) {
      const auto rank = std::find_if(device.ranks.begin(), device.ranks.end(),
                                     [&](const AttachedRank& r) { return matches(r, job, request); });
      if (rank == device.ranks.end()) continue;
      // One rank whose hook is off blocks every lease of its device.
      const bool hooked =
          std::all_of(device.ranks.begin(), device.ranks.end(), [](const AttachedRank& r) { return r.hook_on; });
      if (hooked) {
        candidates.push_back(&device);
      } else {
        off = &*rank;
      }
    }
    if (candidates.empty() && off != nullptr) {
      return wait(Why::kInactive, "job " + job + ", stage " + std::to_string(off->stage));
    }
  }
  if (candidates.empty()) return wait(Why::kNoTrainer, "a trainer" + wanted(request));
  return pick(request, candidates);
}

Status check_request(const PlacementRequest& request, const std::vector<DeviceView>& devices) {
  const auto jobs = meant_jobs(request.job, attached_jobs(devices));
  const bool anywhere = request.when_idle && request.stage < 0 && request.replica < 0;
  if (jobs.size() > 1 && !anywhere) {
    return Error{
        Code::kInvalidArgument,
        "several training jobs are " + (request.job.empty() ? "attached" : "called " + request.job) + ": " + join(jobs),
        "say which with --job"};
  }
  const std::string job = jobs.size() == 1 ? jobs.front() : request.job;
  if (!job.empty()) {
    const JobShape shape = shape_of(job, devices);
    if (shape.attached) {
      if (auto missing = missing_part(request, job, shape)) {
        return Error{Code::kInvalidArgument, *missing, "choose one of those, or none for any"};
      }
    }
  }
  const auto largest = std::max_element(devices.begin(), devices.end(), [](const DeviceView& a, const DeviceView& b) {
    return a.memory_bytes < b.memory_bytes;
  });
  if (largest != devices.end() && largest->memory_bytes < request.memory_bytes) {
    return Error{Code::kRejected,
                 "the task asks for " + mib(request.memory_bytes) + " of memory; the largest worker, " +
                     largest->worker + ", has " + mib(largest->memory_bytes),
                 "ask for less with --memory"};
  }
  return {};
}

}  // namespace freeride::policy
