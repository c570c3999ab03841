#include "freeride/policy/profile_plan.hpp"

#include <algorithm>
#include <tuple>

namespace freeride::policy {

bool profile_is_enough(const ProfileProgress& progress) {
  if (progress.imperative) return progress.executed_ns >= kEnoughProfileNs;
  if (progress.wanted_steps != 0) return progress.steps >= progress.wanted_steps;
  if (progress.steps < kLeastProfileSteps) return false;
  return progress.steps >= kMostProfileSteps || progress.executed_ns >= kEnoughProfileNs;
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
  for (const ProfileDevice& device : devices) {
    if (!device.right_model) continue;
    if (device.device.free_bytes < memory_bytes) {
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
