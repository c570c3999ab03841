#include "load_plan.hpp"

#include <algorithm>

#include "freeride/base/names.hpp"
#include "freeride/policy/placement.hpp"
#include "freeride/policy/why.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

constexpr double kHourNs = 3600e9;

bool asked_for(const bus::Load& load, const bus::TrainingState& rank) {
  return (load.stage < 0 || static_cast<int64_t>(rank.stage) == load.stage) &&
         (load.replica < 0 || static_cast<int64_t>(rank.replica) == load.replica) &&
         (load.job.empty() || means_job(load.job, rank.job));
}

// The longest lease that a task had there lately; 0: none has had one.
int64_t longest_lease_ns(const Worker& worker) {
  int64_t longest_ns = 0;
  for (const auto& [name, report] : worker.tasks) longest_ns = std::max(longest_ns, report.bubble_ns);
  return longest_ns;
}

}  // namespace

// A file that travels with load has been read by the client; here its hash is enough.
Result<std::string> LoadPlanner::content_of(const bus::Load& load) const {
  if (!load.sha256.empty()) return load.sha256;
  auto sha256 = the_.contents.resolve(load);
  if (sha256) the_.contents.release(*sha256);
  return sha256;
}

bus::PlannedStage LoadPlanner::stage_of(const bus::Load& load, const bus::TrainingState& rank, const Worker& worker,
                                        const bus::Profile* profile, int64_t memory_bytes) const {
  bus::PlannedStage stage;
  stage.job = rank.job;
  stage.stage = rank.stage;
  stage.replica = rank.replica;
  stage.worker = worker.name;
  stage.bubble_share_pct = -1;
  for (const auto& measures : the_.jobs.measures(rank.job)) {
    const auto share = measures.stage_bubble_share_pct.find(std::to_string(rank.stage));
    if (share != measures.stage_bubble_share_pct.end()) stage.bubble_share_pct = share->second;
  }
  if (!can_run_program(load, worker)) {
    stage.reason = "its worker runs no programs: it is of an earlier version, or a GPU's without the shim";
    return stage;
  }
  if (worker.drain != 0 || !can_use_files(load, worker)) {
    stage.reason = worker.drain != 0 ? "its device is drained (freeride-ctl uncordon)"
                                     : "the files are another host's: load it there";
    return stage;
  }
  const auto views = the_.capacity.device(worker.name);
  policy::PlacementRequest request;
  request.job = rank.job;
  request.stage = static_cast<int32_t>(rank.stage);
  request.replica = static_cast<int32_t>(rank.replica);
  request.memory_bytes = memory_bytes;
  const auto placement = policy::place(request, views);
  stage.fits = placement.kind == policy::Placement::Kind::kPlace;
  if (!stage.fits) {
    policy::WhyDetail detail;
    detail.what = placement.what;
    stage.reason =
        placement.kind == policy::Placement::Kind::kReject ? placement.what : policy::render_why(placement.why, detail);
    return stage;
  }
  if (profile == nullptr || profile->steps.p50_ns <= 0) {
    stage.reason = load.no_profile ? "how long its steps are is not known without a profile"
                                   : "it has no profile yet; take one with freeride-ctl profile";
    return stage;
  }
  const int64_t lease_ns = longest_lease_ns(worker);
  const int64_t piece_ns =
      profile->pieces.empty()
          ? profile->steps.p90_ns
          : std::max_element(profile->pieces.begin(), profile->pieces.end(), [](const auto& a, const auto& b) {
              return a.p90_ns < b.p90_ns;
            })->p90_ns;
  if (lease_ns > 0 && piece_ns > lease_ns) {
    policy::WhyDetail detail;
    detail.step_ns = piece_ns;
    detail.bubble_ns = lease_ns;
    stage.reason = policy::render_why(policy::Why::kStepTooLong, detail);
    return stage;
  }
  if (stage.bubble_share_pct < 0) {
    stage.reason = "its bubbles have not been measured yet";
    return stage;
  }
  const double bubble_ns = kHourNs * stage.bubble_share_pct / 100 * the_.jobs.duty_pct(rank.job) / 100;
  stage.steps_per_hour = bubble_ns / static_cast<double>(profile->steps.p50_ns);
  return stage;
}

Result<bus::LoadPlan> LoadPlanner::plan(const bus::Load& wish) const {
  const bus::Load load = LoadCheck::named(wish);
  if (auto checked = the_.check.check(load); !checked) return checked.error();
  if (auto checked = the_.check.check_place(load); !checked) return checked.error();
  auto name = the_.check.choose_name(load);
  if (!name) return name.error();
  auto sha256 = content_of(load);
  if (!sha256) return sha256.error();
  if (auto free = the_.check.check_faults(*sha256, load.user); !free) return free.error();

  Task task;
  task.row.info.load = load;
  task.state().sha256 = *sha256;
  bus::LoadPlan plan;
  plan.name = *name;
  plan.memory_bytes = the_.capacity.need_bytes(task);
  auto devices = the_.capacity.devices();
  const Worker* drained = nullptr;
  std::erase_if(devices, [&](const auto& device) {
    const Worker& worker = the_.workers.at(device.worker);
    if (worker.drain != 0) drained = &worker;
    return worker.drain != 0 || !can_use_files(load, worker) || !can_run_program(load, worker);
  });
  const auto request = the_.capacity.request_of(task);
  auto placement = policy::place(request, devices);
  if (placement.kind != policy::Placement::Kind::kPlace && drained != nullptr &&
      policy::place(request, the_.capacity.devices()).kind != policy::Placement::Kind::kReject) {
    placement.kind = policy::Placement::Kind::kWait;
    placement.why = policy::Why::kDrained;
    placement.what = drained->name;
  }
  plan.fits = placement.kind == policy::Placement::Kind::kPlace;
  plan.worker = placement.worker;
  if (placement.kind == policy::Placement::Kind::kReject) {
    plan.reason = placement.what;
  } else if (!plan.fits) {
    policy::WhyDetail detail;
    detail.what = placement.what;
    plan.why = policy::why_name(placement.why);
    plan.reason = policy::render_why(placement.why, detail);
  }
  for (const auto& [worker_name, worker] : the_.workers.all()) {
    if (!worker.up()) continue;
    const bus::Profile* profile = load.no_profile ? nullptr : the_.profiles.find(task, worker.model);
    if (profile != nullptr && (plan.step_ns == 0 || worker_name == plan.worker)) {
      plan.step_ns = profile->steps.p50_ns;
      plan.profile_steps = profile->steps.count;
    }
    for (const auto& rank : worker.ranks) {
      if (asked_for(load, rank)) plan.stages.push_back(stage_of(load, rank, worker, profile, plan.memory_bytes));
    }
  }
  return plan;
}

}  // namespace freeride::manager
