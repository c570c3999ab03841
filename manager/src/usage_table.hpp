// The tables of what side tasks have had of GPUs, by the hour, in the manager's SQLite file.
#pragma once

#include <sqlite3.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
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

/// Adds to the hours' sums; within the caller's transaction. Blocks on the disk. False: `db` has the error.
bool add_usage_rows(sqlite3* db, const std::map<TaskUsageKey, TaskUsage>& tasks,
                    const std::vector<TrainingUsageRow>& trainings);
/// Hours before `thin_before` become days, if it is called at least once in two days, and what is before `drop_before`
/// is dropped. As above.
bool thin_usage_rows(sqlite3* db, int64_t thin_before, int64_t drop_before);
/// 0 and 0: there is none. As above.
bool read_usage_hours(sqlite3* db, int64_t& oldest, int64_t& newest);

/// Adds up what there is from an hour on, in slices of some thousand rows, since years of it take seconds. What is
/// added to the tables meanwhile may count or not; thin_usage_rows() may not be called meanwhile. One thread.
class UsageSum {
 public:
  /// `by`: "user", "account", "job" or "task".
  UsageSum(std::string by, int64_t from_hour);
  /// Reads a slice more. Blocks on the disk. False: `db` has the error.
  bool go_on(sqlite3* db);
  bool done() const { return done_; }
  /// The names with most harvest, and the rest as one. Empties it.
  bus::UsageReply reply();

 private:
  struct Sum {
    bus::UsageRow row;
    double cost_ns = 0, low_ns = 0, high_ns = 0;
  };
  // Of the present hour.
  struct Training {
    double harvested_ns = 0, cost_ns = 0, low_ns = 0, high_ns = 0;
  };
  bool begin_hour(sqlite3* db);
  bool read_rows(sqlite3* db, size_t most, size_t& read);

  std::string by_;
  int64_t hour_, first_ = INT64_MAX;
  bool within_hour_ = false, done_ = false;
  std::array<std::string, 4> last_;  // row that was read of it: task, user, job, account
  std::map<std::string, Training> trainings_;
  std::unordered_map<std::string, Sum> sums_;
  std::unordered_set<size_t> tasks_;  // that were counted, by name of the sum and of the task
};

/// From `hour` on; days that are one row stand under their first hour. As above.
bool read_account_usage(sqlite3* db, int64_t hour, std::vector<AccountUsageRow>& rows);

}  // namespace freeride::manager
