// LoadCheck: whether what a user asks for when loading a plugin can be had at all.
#pragma once

#include <map>
#include <string>

#include "capacity.hpp"
#include "copies.hpp"
#include "fault_budget.hpp"
#include "freeride/bus/commands.hpp"
#include "jobs.hpp"
#include "limits.hpp"
#include "profile_runs.hpp"
#include "task_book.hpp"

namespace freeride::manager {

/// One thread; never blocks.
class LoadCheck {
 public:
  LoadCheck(const TaskBook& tasks, const Jobs& jobs, const ProfileRuns& runs, const Capacity& capacity,
            const FaultBudget& faults, const Copies& copies, const Limits& limits)
      : tasks_(tasks),
        jobs_(jobs),
        runs_(runs),
        capacity_(capacity),
        faults_(faults),
        copies_(copies),
        limits_(limits) {}

  /// The same, with the name that people see of a program in place of a plugin's.
  static bus::Load named(bus::Load load);

  /// Names, numbers and parameters. Errors: kInvalidArgument, kExhausted (too many live tasks).
  Status check(const bus::Load& load) const;
  /// Whether there may be one more live task. Errors: kExhausted.
  Status check_count() const;
  /// Job, stage, replica and memory, against the workers that are up. Errors: kNotFound (there is no such job),
  /// policy::check_request()'s.
  Status check_place(const bus::Load& load) const;
  /// Whether the content may go on a device at once, for whoever asks. Errors: kRejected (blocked for GPU faults).
  Status check_faults(const std::string& sha256, const std::string& user) const;
  /// The name that the new task gets: the given one, else one made of the plugin's. Errors: kAlreadyExists.
  Result<std::string> choose_name(const bus::Load& load) const;

 private:
  const TaskBook& tasks_;
  const Jobs& jobs_;
  const ProfileRuns& runs_;
  const Capacity& capacity_;
  const FaultBudget& faults_;
  const Copies& copies_;
  const Limits& limits_;
  mutable std::map<std::string, size_t> numbers_;  // the last given, by the plugin's name
};

}  // namespace freeride::manager
