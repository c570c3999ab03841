// The tables of what side tasks have had of GPUs, by the hour, in the manager's SQLite file.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "freeride/bus/commands.hpp"

namespace freeride::manager {

/// What a task had of GPUs within an hour.
struct TaskUsage {
  int64_t step_ns = 0, harvested_ns = 0, overrun_ns = 0;
  uint64_t steps = 0;
  TaskUsage& operator+=(const TaskUsage& more) {
    step_ns += more.step_ns, harvested_ns += more.harvested_ns, overrun_ns += more.overrun_ns, steps += more.steps;
    return *this;
  }
};
/// Hour since 1970, task, user, job, account.
using TaskUsageKey = std::tuple<int64_t, std::string, std::string, std::string, std::string>;

/// What an account had within an hour.
struct AccountUsageRow {
  int64_t hour = 0;
  std::string account;
  int64_t harvested_ns = 0;
};

/// A training within an hour. `cost_ns`: GPU time that side tasks made it longer, by its live I, with the ends of the
/// 95 % interval; `unmeasured_ns`: GPU time with side tasks whose cost was not known.
struct TrainingUsageRow {
  int64_t hour = 0;
  std::string job;
  int64_t gpu_ns = 0, bubble_ns = 0, cost_ns = 0, cost_low_ns = 0, cost_high_ns = 0, unmeasured_ns = 0;
};

/// Adds to the hours' sums; within the caller's transaction. Hours more than three days before the latest become days,
/// and what is older than 400 days is dropped. Blocks on the disk. False: `db` has the error.
bool add_usage_rows(sqlite3* db, const std::map<TaskUsageKey, TaskUsage>& tasks,
                    const std::vector<TrainingUsageRow>& trainings);
/// From `hour` on, by "user", "account", "job" or "task". As above.
bool read_usage(sqlite3* db, const std::string& by, int64_t hour, bus::UsageReply& reply);
/// From `hour` on; days that are one row stand under their first hour. As above.
bool read_account_usage(sqlite3* db, int64_t hour, std::vector<AccountUsageRow>& rows);

}  // namespace freeride::manager
