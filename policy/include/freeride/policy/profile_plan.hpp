// Profiles: how many steps one takes, where it is taken, and what its durations come to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "freeride/policy/placement.hpp"

namespace freeride::policy {

/// How far a profile is.
struct ProfileProgress {
  uint64_t steps = 0;         ///< made so far
  int64_t executed_ns = 0;    ///< in them
  uint64_t wanted_steps = 0;  ///< by the user; 0: as many as it takes
  bool imperative = false;    ///< no steps to count: stretches of one long workload
  uint64_t warm_up = 0;       ///< of the steps: warm_up_steps()
};

/// Whether enough is known. As many steps as are wanted; else kLeastProfileSteps at least, and more up to
/// kMostProfileSteps while they come to less than kEnoughProfileNs of work. A task that is loaded waits for its
/// profile: that has kLeastProfileSteps. Steps of the warm-up do not count, unless the user has named a number of
/// steps. A warm-up is no longer than kMostWarmUpNs or kMostProfileSteps.
bool profile_is_enough(const ProfileProgress& progress);
constexpr uint64_t kLeastProfileSteps = 8, kMostProfileSteps = 64;
constexpr int64_t kEnoughProfileNs = 500'000'000;
constexpr int64_t kMostWarmUpNs = 5'000'000'000;

/// How many of the first steps were slower than the later ones. In them libraries are loaded, kernels compiled and
/// chosen, and memory is touched for the first time. Durations are in order of time. At most half of them; 0 of fewer
/// than 4.
size_t warm_up_steps(const std::vector<int64_t>& durations_ns);

/// How long a profile beside a training waits for bubbles, from the task's initialisation on, before it is content with
/// what it has. Memory is known by then, and durations are learned where the task runs anyway. Longer if somebody wants
/// more than the least. `lease_ns`: the length of a profile lease.
int64_t profile_patience_ns(uint64_t wanted_steps, int64_t lease_ns);

/// A device that could take a profile.
struct ProfileDevice {
  DeviceView device;
  bool profiling = false;  ///< another one is being taken there: two would measure each other
  bool right_model = true;
};

struct ProfilePlace {
  std::string worker;  ///< empty: nowhere now
  std::string reason;  ///< why nowhere, for people
};

/// Where to profile something that may need `memory_bytes`. Candidates are devices of the right model that have room
/// and no other profile. It prefers one without a trainer, where it disturbs nobody and has the device at once. Then
/// comes `preferred`, then the one with the fewest tasks. Pure; any thread.
ProfilePlace place_profile(const std::vector<ProfileDevice>& devices, int64_t memory_bytes,
                           const std::string& preferred);

/// What a sample of durations comes to. A quantile is a value that was seen: of few, the larger neighbour.
struct DurationSummary {
  uint64_t count = 0;
  int64_t p50_ns = 0, p90_ns = 0, p99_ns = 0, max_ns = 0;
};
DurationSummary summarise(std::vector<int64_t> durations_ns);

}  // namespace freeride::policy
