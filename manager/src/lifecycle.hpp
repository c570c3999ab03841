// Lifecycle: a task's ways from its worker: states as they are reported, back into the queue, to its end.
#pragma once

#include <string>

#include "capacity.hpp"
#include "config.hpp"
#include "contents.hpp"
#include "copies.hpp"
#include "fault_budget.hpp"
#include "freeride/policy/verdict.hpp"
#include "jobs.hpp"
#include "placement_due.hpp"
#include "replacements.hpp"
#include "restarts.hpp"
#include "task_book.hpp"
#include "usage.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// One thread; blocks on the disk.
class Lifecycle {
 public:
  struct Parts {
    const Clock& clock;
    TaskBook& tasks;
    Workers& workers;
    const Jobs& jobs;
    Usage& usage;
    const Copies& copies;
    Contents& contents;
    Replacements& replacements;
    const Capacity& capacity;
    FaultBudget& faults;
    PlacementDue& due;
    const CoreConfig& config;
  };
  explicit Lifecycle(const Parts& parts) : the_(parts), started_ns_(parts.clock.now_ns()) {}

  /// A task or a profile of `sha256` and `user` has ended on `worker`: counts its GPU fault, if it is one. Tasks of
  /// whom that blocks wait in the queue from now on.
  void note_fault(const bus::Verdict& verdict, const Worker& worker, const std::string& sha256, const std::string& user,
                  const std::string& task);
  /// The task has ended.
  void end(Task& task, bus::Verdict verdict);
  /// What may be left of the task on its worker.
  enum class Left {
    kNothing,  ///< its processes have ended, or there never were any: it may be placed at once
    kPerhaps,  ///< a copy that executes until its orders expire: it may be placed after that, or adopted back before
  };
  /// The task has left its worker and waits again. `count`: as a restart, of which a task has only so many within a
  /// while; only if its worker had it, in whatever state that said it was.
  void requeue(Task& task, const std::string& reason, bool count, Left left);
  /// The same for all tasks of a worker that is gone, or cannot be heard.
  void requeue_all(const std::string& worker, const std::string& reason, bool count);
  /// The same for tasks that a worker's registration does not name, those being created only if `creating_too`.
  void requeue_missing(const Worker& worker, const std::string& reason, bool creating_too);
  /// What a worker reports of something that runs there under a task's name. `leaving`: the worker goes down.
  void take_report(Worker& worker, const bus::TaskReport& report, bool leaving);
  /// Queues again what no worker has named for too long.
  void requeue_silent(int64_t now);

 private:
  bool is_blocked(const Task& task, const Worker& worker) const;
  bool restarts_failed(const Task& task, const bus::Verdict& verdict) const;
  void adopt(Task& task, const Worker& worker);
  bool claim(Task& task, const Worker& worker, const bus::TaskReport& report);
  void disown(Task& task);
  int64_t fence_of(const std::string& worker) const;
  void update(Task& task, const Worker& worker, const bus::TaskReport& report);
  void explain(Task& task, const Worker& worker, const bus::TaskReport& report);

  Parts the_;
  int64_t started_ns_;
};

}  // namespace freeride::manager
