// Capacity: how much memory there is for side tasks, and how much each of them needs.
#pragma once

#include <cstdint>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "freeride/policy/placement.hpp"
#include "profile_book.hpp"
#include "profile_runs.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Computed anew from the books with every call. One thread; never blocks.
class Capacity {
 public:
  /// `default_bytes`: of a task that declares none, until it has been profiled.
  Capacity(const TaskBook& tasks, const Workers& workers, const ProfileRuns& runs, const ProfileBook& profiles,
           int64_t default_bytes)
      : tasks_(tasks), workers_(workers), runs_(runs), profiles_(profiles), default_bytes_(default_bytes) {}

  /// The workers that are up. What is free there is the smaller of what the manager has not promised to anybody, and
  /// the worker's own word less what it does not know of yet.
  std::vector<policy::DeviceView> devices() const;
  /// The most that something may need before it has been profiled: what it declares, else the default, which is never
  /// more than half of the largest worker, so that a small machine can profile, too.
  int64_t cap_bytes(const bus::Load& load) const;
  /// What the task is placed with: what it declares, else what its profiles say and some more, else its cap.
  int64_t need_bytes(const Task& task) const;
  policy::PlacementRequest request_of(const Task& task) const;

 private:
  const TaskBook& tasks_;
  const Workers& workers_;
  const ProfileRuns& runs_;
  const ProfileBook& profiles_;
  int64_t default_bytes_;
};

}  // namespace freeride::manager
