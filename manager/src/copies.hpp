// Copies: what the tasks that workers report are to this manager.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "freeride/policy/orders.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Looks at tasks and at what workers have reported last; changes nothing. One thread; never blocks. Profiles are no
/// tasks.
class Copies {
 public:
  Copies(const TaskBook& tasks, const Workers& workers) : tasks_(tasks), workers_(workers) {}

  policy::Standing standing(const Worker& worker, const bus::TaskReport& report) const;

  /// A task that a worker has, and of which there is no record here.
  struct Unknown {
    const Worker* worker;
    const bus::TaskReport* report;
    /// As users see it.
    bus::TaskInfo info() const;
  };
  std::optional<Unknown> find_unknown(const std::string& name) const;
  std::vector<Unknown> unknown() const;  ///< looks at every task of every worker

  /// How an ended task of the worker's last report is settled (WorkerPlan::settled): "ended", "again", or "" for not
  /// yet.
  const char* settled_as(const Worker& worker, const bus::TaskReport& report) const;

 private:
  const TaskBook& tasks_;
  const Workers& workers_;
};

}  // namespace freeride::manager
