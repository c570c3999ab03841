// CoreConfig: what the manager's command line sets of the core.
#pragma once

#include <cstdint>
#include <string>

#include "fault_budget.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/paths.hpp"
#include "freeride/policy/orders.hpp"
#include "freeride/policy/queue.hpp"
#include "job.hpp"
#include "limits.hpp"
#include "restarts.hpp"

namespace freeride::manager {

struct CoreConfig {
  Paths paths;
  std::string version;
  std::string network;  ///< where it listens on the network, and whether by key, for users; empty: nowhere
  JobConfig job;
  int64_t default_memory_bytes = 2048LL << 20;  ///< cap of an undeclared task until it has been profiled
  int64_t worker_timeout_ns = 5 * kNsPerSec;    ///< silence after which a worker is lost
  int64_t profile_timeout_ns = 180 * kNsPerSec;
  RestartLimit restarts;  ///< of a task that was lost with its worker
  size_t history = 1000;  ///< ended tasks that are kept
  FaultLimits faults;
  Limits limits;
  policy::OrderLimits orders;  ///< how long a worker may go on without a word of this manager
  policy::QueueOrder queue_order = policy::QueueOrder::kSubmission;
  int64_t account_half_life_ns = 24 * 3600 * kNsPerSec;  ///< 0: the queue does not tell accounts apart
};

}  // namespace freeride::manager
