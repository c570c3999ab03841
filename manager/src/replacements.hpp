// Replacements: moves a live task to another plugin content.
#pragma once

#include <optional>
#include <string>

#include "capacity.hpp"
#include "contents.hpp"
#include "load_check.hpp"
#include "orders.hpp"
#include "outside.hpp"
#include "placement_due.hpp"
#include "profile_book.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// What is to happen is on disk before the worker hears of it; the worker moves the task and reports how that went;
/// what it reports is on disk before the user hears of it. One thread; blocks on the disk.
class Replacements {
 public:
  struct Parts {
    Outside& outside;
    const Clock& clock;
    TaskBook& tasks;
    Workers& workers;
    Orders& orders;
    Contents& contents;
    const Capacity& capacity;
    const ProfileBook& profiles;
    const LoadCheck& check;
    PlacementDue& due;
  };
  explicit Replacements(const Parts& parts) : the_(parts) {}

  /// A user's wish. Answered when the new content has taken over, or cannot.
  void replace(Ticket ticket, const std::string& request_id, const std::string& task, const bus::Load& asked);
  /// The worker's answer to the order; what came of it is in a later report.
  void reply(const Pending& pending, const std::optional<Error>& error);
  /// The task's worker has reported it.
  void take_report(Task& task, const bus::TaskReport& report);
  /// The replacement under way, if there is one, has failed, and the old content continues.
  void fail(Task& task, const std::string& why, Code code);

 private:
  void repeat(Ticket ticket, const std::string& request_id, int64_t id);
  Status check_room(const Task& task, const bus::Load& load) const;
  void send(Task& task);
  void done(Task& task, const std::string& how, uint64_t steps);

  Parts the_;
};

}  // namespace freeride::manager
