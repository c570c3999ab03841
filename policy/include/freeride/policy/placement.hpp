// Placement: which worker a side task goes to. The paper's Algorithm 1 over a snapshot, with the reason where the
// answer is not "there".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/policy/why.hpp"

namespace freeride::policy {

/// A training rank attached to a device.
struct AttachedRank {
  std::string job;
  uint32_t stage = 0, stages = 1, replica = 0, replicas = 1;
  bool hook_on = true;  ///< false: its hook has switched itself off, so its bubbles give no leases
};

/// A worker and its device.
struct DeviceView {
  std::string worker;
  int64_t memory_bytes = 0;  ///< the most side tasks could ever have there
  int64_t free_bytes = 0;    ///< left for another one now
  uint32_t tasks = 0;        ///< live side tasks placed there
  std::vector<AttachedRank> ranks;
  bool other_process = false;  ///< a process that is no attached rank uses it: it may be a training without the hook

  /// Whether a training may be there that FreeRide does not see: what needs an idle device keeps away.
  bool may_be_in_use() const { return ranks.empty() && other_process; }
};

/// What a task asks for.
struct PlacementRequest {
  std::string job;                   ///< empty: the only one; a name alone: whosever job of that name there is
  int32_t stage = -1, replica = -1;  ///< -1: any
  int64_t memory_bytes = 0;
  bool when_idle = false;   ///< a device without a trainer will do, where no stage, replica or job is asked for
  bool any_job = false;     ///< where no job is asked for: any, though there are several
  std::string last_worker;  ///< where it was before, and has left what it saved; empty: nowhere
};

struct Placement {
  enum class Kind { kPlace, kWait, kReject };
  Kind kind = Kind::kWait;
  std::string worker;    ///< kPlace
  Why why = Why::kNone;  ///< kWait
  std::string what;      ///< kWait: WhyDetail::what; kReject: the reason, a sentence for people
};

/// The paper's Algorithm 1 among the devices whose trainer matches job, stage and replica. Of those with enough free
/// memory it takes the one with the fewest tasks; of these the one where the task was, else one of that host, so that
/// its state need not be fetched; then the one with the most free memory, then the first by name. kWait, with what is
/// missing: nothing can be had now, but could be later. kReject: every matching device is too small even when empty.
/// `devices` holds those that are up. Pure; any thread.
Placement place(const PlacementRequest& request, const std::vector<DeviceView>& devices);

/// What a user should be told at once instead of leaving a task in the queue. Errors: kInvalidArgument (several jobs,
/// none named and not any will do; or a stage or replica that the attached job does not have, naming those it has).
/// kRejected (more memory than any device has, naming the largest). Without a trainer or a worker nothing can be said
/// against a request yet.
Status check_request(const PlacementRequest& request, const std::vector<DeviceView>& devices);

/// The jobs with a rank on `devices`, sorted.
std::vector<std::string> attached_jobs(const std::vector<DeviceView>& devices);
/// Those of `jobs` that `wanted` means: that very one, else all that have this name, whosever they are.
std::vector<std::string> meant_jobs(const std::string& wanted, const std::vector<std::string>& jobs);

}  // namespace freeride::policy
