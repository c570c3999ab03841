// Progress: how much of its work the task has done.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "answer.hpp"
#include "freeride/plugin.h"
#include "freeride/policy/verdict.hpp"
#include "job.hpp"

namespace freeride::runner {

/// Knows when a task, or a profile of one, has made all its steps. Main thread; nothing blocks. Job and answer are the
/// caller's.
class Progress {
 public:
  Progress(const Job& job, Answer& answer) : job_(job), answer_(answer) {}

  /// The task goes on from where an earlier run of it has ended.
  void go_on_from(uint64_t steps) { steps_before_ = steps; }
  /// Over all its runs.
  uint64_t steps() const { return steps_before_ + answer_.steps(); }

  /// A step has been made and counted, and has said FREERIDE_OK or FREERIDE_FINISHED.
  void step_made(freeride_status status, int64_t took_ns);
  /// A workload has executed under a lease, which counts as a step, though it has no end of its own.
  void workload_ran() { answer_.count_step(); }
  /// The workload has come to its end.
  void workload_ended();

  bool done() const { return done_; }
  /// Of a profile: enough is known. `imperative`: of a workload.
  bool seen_enough(bool imperative) const;
  /// Why it is done, for the verdict.
  policy::Cause cause() const { return made_all_steps() ? policy::Cause::kSteps : policy::Cause::kDone; }
  std::string reason(bool imperative) const;

 private:
  bool made_all_steps() const { return !job_.profile && !whole_ && job_.steps != 0 && steps() >= job_.steps; }

  const Job& job_;
  Answer& answer_;
  uint64_t steps_before_ = 0;
  std::vector<int64_t> durations_ns_;  ///< of a profile's steps
  bool done_ = false;
  bool whole_ = false;  ///< a workload, to its end
};

}  // namespace freeride::runner
