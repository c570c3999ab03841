// Plans: the standing orders that a worker goes on under, whatever becomes of the manager.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "copies.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/orders.hpp"
#include "jobs.hpp"
#include "orders.hpp"
#include "profile_runs.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// A worker's plan names everything that may run there, and so renews it; what else the worker has and is no profile,
/// to be ended or to be kept; and the holdout plans of its jobs. One thread; never blocks.
class Plans {
 public:
  Plans(const TaskBook& tasks, Workers& workers, Jobs& jobs, const ProfileRuns& runs, const Copies& copies,
        Orders& orders, const policy::OrderLimits& limits)
      : tasks_(tasks), workers_(workers), jobs_(jobs), runs_(runs), copies_(copies), orders_(orders), limits_(limits) {}

  bus::WorkerPlan of(const Worker& worker) const;
  /// The same without holdout plans: the answer to each report.
  bus::WorkerPlan renewal_of(const Worker& worker) const;
  /// Makes the jobs' holdout plans anew where that is due, of jobs with a rank seen at or after `since_ns`.
  void replan_jobs(int64_t now, int64_t since_ns);
  /// Sends plans that have changed, one at a time to each worker.
  void send_due();
  /// Sends the worker's plan with this work at once; one that is under way is not waited for.
  void send_work(const Worker& worker, std::vector<bus::TaskWork> work);
  /// The plan with that request id was not answered in time.
  void unanswered(const std::string& worker, const std::string& id);
  void reply(const std::string& worker, const std::string& id, const std::optional<Error>& error);

 private:
  std::map<std::string, uint64_t> side_tasks() const;
  bus::TaskOrder order_for(const Worker& worker, const bus::TaskReport& report) const;

  const TaskBook& tasks_;
  Workers& workers_;
  Jobs& jobs_;
  const ProfileRuns& runs_;
  const Copies& copies_;
  Orders& orders_;
  const policy::OrderLimits limits_;
};

}  // namespace freeride::manager
