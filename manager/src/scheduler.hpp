// Scheduler: from the queue to a worker.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "capacity.hpp"
#include "config.hpp"
#include "devices.hpp"
#include "freeride/policy/queue.hpp"
#include "lifecycle.hpp"
#include "orders.hpp"
#include "placement_due.hpp"
#include "profile_book.hpp"
#include "profiler.hpp"
#include "task_book.hpp"
#include "usage.hpp"
#include "wishes.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Places the tasks in the queue, profiled before, and has them created. A long queue is gone through in slices, with
/// as long a rest after each. One thread; blocks on the disk, once a slice.
class Scheduler {
 public:
  struct Parts {
    const Clock& clock;
    TaskBook& tasks;
    Usage& usage;
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
  explicit Scheduler(const Parts& parts)
      : the_(parts), devices_(parts.capacity, parts.workers, parts.faults, parts.due) {}

  /// Goes on with the queue, if PlacementDue is raised, something in it has waited long enough, or it was not finished.
  void run();
  /// When run() has something to do next, at the earliest.
  int64_t next_ns() const;
  uint64_t device_looks() const { return devices_.looks(); }  ///< devices looked at so far
  /// The worker's answer to the order to create a task.
  void create_reply(const Pending& pending, const std::optional<Error>& error);
  /// Sends again what its worker has neither taken nor refused; after some tries the task waits in the queue.
  void retry_creates(int64_t now);

 private:
  struct Slice {
    std::vector<int64_t> created;  // tasks whose orders are to be sent
    int64_t now_ns = 0;
  };

  void begin_pass();
  void look_at(Task& task, Slice& slice);
  void place(Task& task, Slice& slice);
  Profiler::Outcome profile(const Task& task, const std::string& preferred, const Devices::Choice& choice);
  void create(Task& task, const Worker& worker, int64_t reserved_bytes);
  void send(Task& task, const Worker& worker);

  Parts the_;
  Devices devices_;
  std::vector<uint64_t> queue_;  // of the pass under way, the next one last
  AtWork groups_;
  int64_t rest_until_ns_ = 0;
  int64_t wake_ns_ = INT64_MAX;  // the first that waits for a time
};

}  // namespace freeride::manager
