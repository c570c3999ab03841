// The bounds that no lease states, in one place.
#pragma once

#include <cstddef>
#include <cstdint>

namespace freeride::runner {

/// Wall-time bounds of what runs outside leases. Options of `freeride-runner supervise`.
struct Limits {
  int64_t create_ms = 60'000;  ///< loading the plugin and CreateSideTask
  int64_t stop_ms = 10'000;    ///< from the order to stop (or the entry of StopSideTask) to the process's end
};

/// The one profile lease: no step begins after this share of what the lease has left after InitSideTask. How many
/// there are: policy/profile_plan.
constexpr int64_t kProfileShareDivisor = 2;

/// What a workload gets at least to come to its gate when its lease was taken back, before it is stopped wherever it
/// is.
constexpr int64_t kLeastGateNs = 1'000'000;

/// How long StopSideTask waits for a workload (imperative interface) to come to its gate.
constexpr int64_t kAbandonMs = 1000;

/// How long threads that outlived StopSideTask are looked at: do they execute?
constexpr int64_t kThreadWatchMs = 50;

/// A paused task is looked at again after this long, then at doubling distances up to the second value: does it really
/// not execute?
constexpr int64_t kFirstIdleLookNs = 1'000'000'000;
constexpr int64_t kLastIdleLookNs = 4'000'000'000;

/// What holds until a lease page has stated its limits.
constexpr int64_t kDefaultGraceNs = 100'000'000;
constexpr int64_t kDefaultHangNs = 5'000'000'000;

/// Longest log line and longest reason, bytes; longer ones are cut.
constexpr size_t kLogLineBytes = 2048;
constexpr size_t kReasonBytes = 1800;

/// Parameters a plugin may declare; more is taken for a broken table.
constexpr uint32_t kMostParams = 256;

}  // namespace freeride::runner
