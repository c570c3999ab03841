// Scheduler: from the queue to a worker.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "capacity.hpp"
#include "config.hpp"
#include "freeride/policy/placement.hpp"
#include "freeride/policy/queue.hpp"
#include "lifecycle.hpp"
#include "orders.hpp"
#include "placement_due.hpp"
#include "profile_book.hpp"
#include "profiler.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Places the tasks in the queue, profiled before, and has them created. One thread; blocks on the disk.
class Scheduler {
 public:
  struct Parts {
    const Clock& clock;
    TaskBook& tasks;
    Workers& workers;
    Orders& orders;
    const Capacity& capacity;
    const ProfileBook& profiles;
    Profiler& profiler;
    Lifecycle& lifecycle;
    const FaultBudget& faults;
    PlacementDue& due;
    const CoreConfig& config;
  };
  explicit Scheduler(const Parts& parts) : the_(parts) {}

  /// Goes through the queue, if PlacementDue is raised.
  void run();
  /// The worker's answer to the order to create a task.
  void create_reply(const Pending& pending, const std::optional<Error>& error);
  /// Sends again what its worker has neither taken nor refused; after some tries the task waits in the queue.
  void retry_creates(int64_t now);

 private:
  bool place(Task& task, const std::vector<policy::DeviceView>& devices);  // true: `devices` is out of date
  void create(Task& task, const Worker& worker, int64_t reserved_bytes);

  Parts the_;
};

}  // namespace freeride::manager
