#include "freeride/policy/profile_plan.hpp"

#include <algorithm>
#include <tuple>

namespace freeride::policy {

bool profile_is_enough(const ProfileProgress& progress) {
  if (progress.imperative) return progress.executed_ns >= kEnoughProfileNs;
  if (progress.wanted_steps != 0 && progress.wanted_steps != kLeastProfileSteps)
    return progress.steps >= progress.wanted_steps;
  const uint64_t steady = progress.steps - std::min(progress.steps, progress.warm_up);
  const bool warms_up = progress.steps < kMostProfileSteps && progress.executed_ns < kMostWarmUpNs;
  if (progress.steps < kLeastProfileSteps || (steady < kLeastProfileSteps && warms_up)) return false;
  if (progress.wanted_steps != 0) return true;
  return progress.steps >= kMostProfileSteps || progress.executed_ns >= kEnoughProfileNs;
}

size_t warm_up_steps(const std::vector<int64_t>& durations_ns) {
  constexpr size_t kLeast = 4;
  constexpr double kSteady = 1.25, kOutlier = 1.5;  // of the steady median: of three steps, and of one
  const size_t count = durations_ns.size();
  if (count < kLeast) return 0;
  const auto median = [&](size_t from, size_t to) {
    std::vector<int64_t> some(durations_ns.begin() + static_cast<ptrdiff_t>(from),
                              durations_ns.begin() + static_cast<ptrdiff_t>(to));
    const auto middle = some.begin() + static_cast<ptrdiff_t>(some.size() / 2);
    std::nth_element(some.begin(), middle, some.end());
    return static_cast<double>(*middle);
  };
  const double steady_ns = median(count / 2, count);
  for (size_t i = 0; i < count / 2; ++i) {
    const bool like_the_rest = static_cast<double>(durations_ns[i]) <= kOutlier * steady_ns;
    if (like_the_rest && median(i, std::min(i + 3, count)) <= kSteady * steady_ns) return i;
  }
  return count / 2;
}

int64_t profile_patience_ns(uint64_t wanted_steps, int64_t lease_ns) {
  return wanted_steps > kLeastProfileSteps ? lease_ns : lease_ns / 3;
}

ProfilePlace place_profile(const std::vector<ProfileDevice>& devices, int64_t memory_bytes,
                           const std::string& preferred) {
  const auto rank = [&](const ProfileDevice& d) {
    return std::make_tuple(!d.device.ranks.empty(), d.device.worker != preferred, d.device.tasks);
  };
  const ProfileDevice* chosen = nullptr;
  const ProfileDevice* busy = nullptr;
  const ProfileDevice* full = nullptr;
  const ProfileDevice* in_use = nullptr;
  for (const ProfileDevice& device : devices) {
    if (!device.right_model) continue;
    if (device.device.may_be_in_use()) {
      in_use = &device;
    } else if (device.device.free_bytes < memory_bytes) {
      if (full == nullptr || device.device.free_bytes > full->device.free_bytes) full = &device;
    } else if (device.profiling) {
      busy = &device;
    } else if (chosen == nullptr || rank(device) < rank(*chosen)) {
      chosen = &device;
    }
  }
  if (chosen != nullptr) return {chosen->device.worker, {}};
  if (busy != nullptr) return {{}, "another profile is being taken on " + busy->device.worker};
  if (full != nullptr) {
    return {{},
            "needs " + std::to_string(memory_bytes >> 20) + " MiB, " + full->device.worker + " has " +
                std::to_string(std::max<int64_t>(0, full->device.free_bytes) >> 20) + " MiB free"};
  }
  if (in_use != nullptr)
    return {{}, "a process that may be a training without the hook uses the GPU of " + in_use->device.worker};
  return {{}, "no worker is there for it"};
}

DurationSummary summarise(std::vector<int64_t> durations_ns) {
  DurationSummary summary;
  if (durations_ns.empty()) return summary;
  std::sort(durations_ns.begin(), durations_ns.end());
  const size_t last = durations_ns.size() - 1;
  // In whole hundredths, so that no rounding of a fraction decides about a neighbour.
  const auto quantile = [&](size_t pct) { return durations_ns[(last * pct + 99) / 100]; };
  summary.count = durations_ns.size();
  summary.p50_ns = quantile(50);
  summary.p90_ns = quantile(90);
  summary.p99_ns = quantile(99);
  summary.max_ns = durations_ns[last];
  return summary;
}

}  // namespace freeride::policy
