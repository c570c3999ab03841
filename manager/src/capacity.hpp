// Capacity: how much memory there is for side tasks, and how much each of them needs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "freeride/policy/placer.hpp"
#include "profile_book.hpp"
#include "profile_runs.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// What a task asks for, with the memory that its user has named. A batch's members do for any job.
policy::PlacementRequest request_of(const bus::Load& load);

/// Computed anew from the books with every call, but attached(). One thread; never blocks.
class Capacity {
 public:
  /// `default_bytes`: of a task that declares none, until it has been profiled.
  Capacity(const TaskBook& tasks, const Workers& workers, const ProfileRuns& runs, const ProfileBook& profiles,
           int64_t default_bytes)
      : tasks_(tasks), workers_(workers), runs_(runs), profiles_(profiles), default_bytes_(default_bytes) {}

  /// The workers that are up. What is free there is the smaller of what the manager has not promised to anybody, and
  /// the worker's own word less what it does not know of yet.
  std::vector<policy::DeviceView> devices() const;
  /// The one of that name alone; none: it is not up.
  std::vector<policy::DeviceView> device(const std::string& name) const;
  struct Room {
    int64_t free_bytes = 0;
    uint32_t tasks = 0;
  };
  /// The same of it as in device(), without its ranks; nothing: it is not up.
  std::optional<Room> room_on(const std::string& worker) const;
  /// For Placer::check() and jobs(): of which devices and ranks there are. What is free there may be long ago.
  const policy::Placer& attached() const;
  /// The most that something may need before it has been profiled: what it declares, else the default, which is never
  /// more than half of the largest worker, so that a small machine can profile, too.
  int64_t cap_bytes(const bus::Load& load) const;
  /// What the task is placed with: what it declares, else what its profiles say and some more, else its cap.
  int64_t need_bytes(const Task& task) const;
  policy::PlacementRequest request_of(const Task& task) const;

 private:
  struct Promised {
    int64_t bytes = 0, unreported_bytes = 0;  ///< of these, what the worker does not know of yet
  };
  Room room_of(const Worker& worker, const Promised& profiles) const;
  Promised profiles_on(const Worker& worker) const;
  policy::DeviceView view_of(const Worker& worker, const Promised& profiles) const;
  static void add(const ProfileRun& run, const Worker& worker, Promised& promised);

  const TaskBook& tasks_;
  const Workers& workers_;
  const ProfileRuns& runs_;
  const ProfileBook& profiles_;
  int64_t default_bytes_;
  mutable std::unique_ptr<policy::Placer> attached_;
  mutable uint64_t attached_version_ = 0;
};

}  // namespace freeride::manager
