// KillWatch: the kill rule for one side task: execution past the end of its leases, or without any.
#pragma once

#include <cstdint>
#include <string>

#include "acting/answers.hpp"
#include "acting/lease_writer.hpp"
#include "acting/processes.hpp"
#include "acting/task_source.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/policy/overrun.hpp"
#include "freeride/policy/rights.hpp"
#include "freeride/policy/verdict.hpp"

namespace freeride::worker {

struct TaskLimits {
  bool by_cpu_clock = true;  ///< execution is CPU time (CPU devices); false: wall time (GPUs)
  bool stops = false;        ///< between leases its process is stopped (GPUs): no clock shows what a GPU executes
  uint32_t cores = 1;
  int64_t grace_ns = 0, hang_ns = 0;
  int64_t stop_ns = 15 * kNsPerSec;  ///< for StopSideTask, where a task comes to it of itself
};

/// Judges, and kills. Belongs to the acting thread. No allocation but for a kill.
class KillWatch {
 public:
  /// All outlive it.
  KillWatch(TaskSource& source, const Answers& answers, const LeaseWriter& lease, TaskProcess& process,
            const TaskLimits& limits)
      : source_(source),
        answers_(answers),
        lease_(lease),
        process_(process),
        limits_(limits),
        rights_({limits.grace_ns, limits.stop_ns}) {}

  /// A new look at the answers.
  void look() {
    claim_ = rights_.see(answers_.claim(), lease_.id() != 0);
    if (unpaused_ && !watching_ && claim_ != policy::Claim::kExecuting) forgive();
  }
  /// A lease is about to be opened: what it executes from now on is not looked at until the lease's end.
  void lease_opens(int64_t now_ns);
  /// The present lease has ended then: deadline passed, or taken back.
  void lease_ended(int64_t ended_ns);
  /// A training has come, and what was given to a profile is taken back.
  void training_came() { training_came_ = true; }
  /// A lease that is none for steps is taken back, because the manager's orders have expired.
  void orders_expired() { orders_expired_ = true; }
  /// Nothing that it has executed so far counts any more: it has paused, or is to stop.
  void forgive();

  /// Judges it; kills and returns true when a limit is passed. `look_ns` is set when it has to be judged again by time
  /// alone.
  bool judge(int64_t now_ns, int64_t& look_ns);
  /// For the time in which nothing is expected: execution though it has no lease, whatever it says.
  bool audit(int64_t now_ns);
  /// Has it paused, and is there nothing that it may do before its next lease?
  bool may_stop() const;
  /// The same for stops: whoever executes in them is killed.
  bool judge_stops(int64_t now_ns);
  /// Kills it for what somebody else has seen.
  void accuse(policy::Verdict verdict) { kill(std::move(verdict)); }
  /// The last lease has ended, and it has not been seen paused since.
  bool watching() const { return watching_; }
  bool seen_paused() const { return !watching_ && !unpaused_; }
  bool killed() const { return killed_; }
  /// Where it is in its life: forward only, whatever it says of itself.
  policy::Phase phase() const { return rights_.phase(); }
  /// That it was killed with; none where it had ended by itself before.
  const policy::Verdict& verdict() const { return source_.killed_verdict; }
  int64_t executed_at_kill_ns() const { return executed_at_kill_ns_; }

 private:
  void watch(int64_t ended_ns, int64_t cpu_ns);
  void look_for_starvation(policy::OverrunSnapshot& snapshot);
  bool judge_stop(int64_t now_ns, int64_t& look_ns);
  void kill(policy::Cause cause, std::string message, std::string limit);
  void kill(policy::Verdict verdict);

  TaskSource& source_;
  const Answers& answers_;
  const LeaseWriter& lease_;
  TaskProcess& process_;
  const TaskLimits limits_;
  bool killed_ = false, training_came_ = false, orders_expired_ = false;
  policy::Rights rights_;
  policy::Claim claim_ = policy::Claim::kCreating;
  int64_t stops_since_ns_ = 0, cpu_at_stop_ns_ = -1;  // of a stop that nobody ordered; 0, -1: not judged yet

  // Since the first lease that ended and was not followed by a pause. A new lease does not forgive: whoever never
  // pauses adds up.
  bool unpaused_ = false;
  int64_t first_end_ns_ = 0, cpu_at_first_end_ns_ = -1;
  int64_t starved_at_first_end_ns_ = -1;  // -1: not looked at yet
  int64_t carried_ns_ = 0;                // executed past the ends of all leases but the last

  bool watching_ = false;
  int64_t ended_ns_ = 0, cpu_at_end_ns_ = -1;
  uint64_t ended_lease_ = 0;
  int64_t executed_at_kill_ns_ = 0;
};

}  // namespace freeride::worker
