// Listings: what users may see of all tasks, workers, plugins and jobs.
#pragma once

#include <cstdint>
#include <string>

#include "config.hpp"
#include "copies.hpp"
#include "jobs.hpp"
#include "outside.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Changes nothing. Every command is answered through Outside::answer(ticket). One thread; never blocks.
class Listings {
 public:
  Listings(const CoreConfig& config, Outside& outside, const Clock& clock, const TaskBook& tasks,
           const Workers& workers, const Jobs& jobs, const Copies& copies)
      : config_(config),
        outside_(outside),
        clock_(clock),
        tasks_(tasks),
        workers_(workers),
        jobs_(jobs),
        copies_(copies),
        started_ns_(clock.now_ns()) {}

  void tasks(Ticket ticket) const;
  void workers(Ticket ticket) const;
  /// Of one job, or of all with an empty name.
  void ranks(Ticket ticket, const std::string& job) const;
  void plugins(Ticket ticket) const;
  void status(Ticket ticket) const;
  /// Measures and tasks of one job, or of all with an empty name.
  void report(Ticket ticket, const std::string& job) const;

 private:
  const CoreConfig& config_;
  Outside& outside_;
  const Clock& clock_;
  const TaskBook& tasks_;
  const Workers& workers_;
  const Jobs& jobs_;
  const Copies& copies_;
  int64_t started_ns_;
};

}  // namespace freeride::manager
