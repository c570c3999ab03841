// TaskCommands: what users order of one task.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "contents.hpp"
#include "copies.hpp"
#include "lifecycle.hpp"
#include "load_check.hpp"
#include "orders.hpp"
#include "outside.hpp"
#include "placement_due.hpp"
#include "scheduler.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Every command is answered through Outside::answer(ticket): with the task, or an error. One thread; blocks on the
/// disk.
class TaskCommands {
 public:
  struct Parts {
    const Clock& clock;
    Outside& outside;
    TaskBook& tasks;
    Workers& workers;
    Orders& orders;
    Contents& contents;
    const LoadCheck& check;
    const Copies& copies;
    Lifecycle& lifecycle;
    Scheduler& scheduler;
    PlacementDue& due;
  };
  explicit TaskCommands(const Parts& parts) : the_(parts) {}

  /// A new task, on disk. A repeated request is answered with the task that it has made.
  void load(Ticket ticket, const std::string& request_id, const bus::Load& load);
  /// The same with load_waiting(), which makes all tasks that wait for it with one wait for the disk.
  void load_later(Ticket ticket, const std::string& request_id, const bus::Load& load);
  /// False: none waited.
  bool load_waiting();
  /// As many wait as are made in a short while: they are not to be more.
  bool enough_waiting() const { return waiting_.size() >= at_once_; }
  void stop(Ticket ticket, const std::string& task);
  /// Stops those whose time is over (load --time).
  void stop_over_time();
  /// Stops a live task, for a reason of the manager's own.
  void stop_for(Task& task, const std::string& reason);
  void pause(Ticket ticket, const std::string& task);
  void resume(Ticket ticket, const std::string& task);
  /// Forgets a task that has ended, unless its worker may still have something of it: that is told apart by the record.
  void remove(Ticket ticket, const std::string& task);
  /// The task with its log; of one that runs, its worker is asked for it.
  void show(Ticket ticket, const std::string& task);
  /// The log has come from the worker, or an error instead.
  void log_reply(const Pending& pending, const std::optional<Error>& error, const std::string& log);
  /// The worker did not answer an order in time.
  void unanswered(const Pending& pending);

 private:
  static constexpr size_t kLeastAtOnce = 8;
  struct Waiting {
    Ticket ticket;
    std::string request_id;
    bus::Load load;
  };
  struct Made {
    Result<Task*> task;
    bool fresh = false;         // not of an earlier request of this id
    bool disk_refuses = false;  // and not the load
  };
  Made make(const std::string& request_id, const bus::Load& wish);
  bool load_together(const std::vector<Waiting>& waiting);
  Result<Task*> running(const std::string& name, const char* verb);
  void apply(Ticket ticket, Task& task, const char* doing, const std::function<void(Task&)>& change, bool even_unsaved);
  void send_order(const Task& task);
  void stop_unknown(Ticket ticket, const Copies::Unknown& unknown);
  void answer_log(const Pending& pending, const std::string& log);

  Parts the_;
  std::vector<Waiting> waiting_;
  size_t at_once_ = kLeastAtOnce;  // by how long the last ones took
};

}  // namespace freeride::manager
