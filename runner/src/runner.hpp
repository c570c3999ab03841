// Runner: one side task's state machine, in a process of its own, driven by the lease page.
#pragma once

#include <cstdint>
#include <string>

#include "imperative.hpp"
#include "job.hpp"
#include "steps.hpp"
#include "task_parts.hpp"
#include "turn.hpp"
#include "yield_points.hpp"

namespace freeride::runner {

/// Runs one task to its end: what a lease or an order means in the state that the task is in. All on the main thread.
/// Reads the lease page, writes the answer page; both, and the descriptors, are the caller's.
class Runner {
 public:
  /// `thaw`: shared with the supervisor; nullptr: there is nobody who wakes a process that stops itself.
  Runner(Job job, const freeride_lease_page& lease, freeride_answer_page& answer, int last_words_fd, Thaw* thaw);

  /// Load, CreateSideTask, then whatever leases and orders say. Blocks until the task's end, asleep on the lease page's
  /// futex while there is no lease. Never throws: what the plugin throws becomes the outcome. The outcome has been
  /// written to the supervisor's pipe before the plugin's destroy() ran.
  void run();

 private:
  Next create();
  Next loop();
  Next act(const SeenLease& seen);
  Next init();
  Next restore();
  Next save(const pages::Lease& lease);
  Next profile(const SeenLease& seen);
  Next stop(policy::VerdictKind kind, policy::Cause cause, const std::string& reason);

  TaskParts parts_;
  Turn turn_;
  YieldPoints yields_;
  Steps steps_;
  Imperative imperative_;
  uint32_t threads_before_ = 0;  ///< of this process, before anything of the plugin is loaded
};

}  // namespace freeride::runner
