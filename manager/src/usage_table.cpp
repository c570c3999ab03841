#include "usage_table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "sqlite.hpp"

namespace freeride::manager {
namespace {

constexpr const char* kAddTaskUsage =
    "INSERT INTO task_usage (hour, task, user, job, step_ns, harvested_ns, overrun_ns, steps, account)"
    " VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9) ON CONFLICT (hour, task, user, job, account) DO UPDATE SET"
    " step_ns = step_ns + ?5, harvested_ns = harvested_ns + ?6, overrun_ns = overrun_ns + ?7, steps = steps + ?8";
constexpr const char* kAddTrainingUsage =
    "INSERT INTO training_usage (hour, job, gpu_ns, bubble_ns, cost_ns, cost_low_ns, cost_high_ns, unmeasured_ns)"
    " VALUES (?1,?2,?3,?4,?5,?6,?7,?8) ON CONFLICT (hour, job) DO UPDATE SET"
    " gpu_ns = gpu_ns + ?3, bubble_ns = bubble_ns + ?4, cost_ns = cost_ns + ?5, cost_low_ns = cost_low_ns + ?6,"
    " cost_high_ns = cost_high_ns + ?7, unmeasured_ns = unmeasured_ns + ?8";
// Days stand under their first hour. Each hour comes by here soon after it has become old.
constexpr std::array<const char*, 4> kThinUsage = {
    "INSERT INTO task_usage (hour, task, user, job, account, step_ns, harvested_ns, overrun_ns, steps)"
    " SELECT hour - hour % 24, task, user, job, account, SUM(step_ns), SUM(harvested_ns), SUM(overrun_ns),"
    " SUM(steps) FROM task_usage WHERE hour BETWEEN ?1 - 48 AND ?1 - 1 AND hour % 24 != 0 GROUP BY 1, 2, 3, 4, 5"
    " ON CONFLICT (hour, task, user, job, account) DO UPDATE SET step_ns = step_ns + excluded.step_ns,"
    " harvested_ns = harvested_ns + excluded.harvested_ns, overrun_ns = overrun_ns + excluded.overrun_ns,"
    " steps = steps + excluded.steps",
    "DELETE FROM task_usage WHERE hour BETWEEN ?1 - 48 AND ?1 - 1 AND hour % 24 != 0",
    "INSERT INTO training_usage SELECT hour - hour % 24, job, SUM(gpu_ns), SUM(bubble_ns), SUM(cost_ns),"
    " SUM(cost_low_ns), SUM(cost_high_ns), SUM(unmeasured_ns) FROM training_usage WHERE hour BETWEEN ?1 - 48 AND ?1 - "
    "1 AND hour % 24 != 0"
    " GROUP BY 1, 2 ON CONFLICT (hour, job) DO UPDATE SET gpu_ns = gpu_ns + excluded.gpu_ns,"
    " bubble_ns = bubble_ns + excluded.bubble_ns, cost_ns = cost_ns + excluded.cost_ns,"
    " cost_low_ns = cost_low_ns + excluded.cost_low_ns, cost_high_ns = cost_high_ns + excluded.cost_high_ns,"
    " unmeasured_ns = unmeasured_ns + excluded.unmeasured_ns",
    "DELETE FROM training_usage WHERE hour BETWEEN ?1 - 48 AND ?1 - 1 AND hour % 24 != 0"};
constexpr std::array<const char*, 2> kDropUsage = {"DELETE FROM task_usage WHERE hour < ?",
                                                   "DELETE FROM training_usage WHERE hour < ?"};
// A row of before there were accounts is its user's.
constexpr const char* kAccount = "CASE WHEN account = '' THEN user ELSE account END";
constexpr size_t kMostUsageRows = 1000;
constexpr size_t kSliceRows = 4000, kHourRows = 100;  // what a slice reads, and what beginning with an hour counts as

// What is too much for one answer becomes one row.
void fold_rest(std::vector<bus::UsageRow>& rows) {
  if (rows.size() <= kMostUsageRows) return;
  bus::UsageRow rest;
  rest.name = "...";
  for (size_t i = kMostUsageRows; i < rows.size(); ++i) {
    const bus::UsageRow& row = rows[i];
    rest.tasks += row.tasks, rest.steps += row.steps, rest.step_ns += row.step_ns;
    rest.harvested_ns += row.harvested_ns, rest.overrun_ns += row.overrun_ns, rest.cost_ns += row.cost_ns;
    rest.cost_low_ns += row.cost_low_ns, rest.cost_high_ns += row.cost_high_ns;
    rest.unmeasured_ns += row.unmeasured_ns, rest.gpu_ns += row.gpu_ns, rest.bubble_ns += row.bubble_ns;
  }
  rows.resize(kMostUsageRows);
  rows.push_back(std::move(rest));
}

}  // namespace

bool add_usage_rows(sqlite3* db, const std::map<TaskUsageKey, TaskUsage>& tasks,
                    const std::vector<TrainingUsageRow>& trainings) {
  Statement put_task(db, kAddTaskUsage);
  for (const auto& [key, usage] : tasks) {
    const auto& [hour, task, user, job, account] = key;
    put_task.again().bind(hour).bind(task).bind(user).bind(job).bind(usage.step_ns).bind(usage.harvested_ns);
    if (!put_task.bind(usage.overrun_ns).bind(usage.steps).bind(account).run()) return false;
  }
  for (const auto& row : trainings) {
    Statement put(db, kAddTrainingUsage);
    put.bind(row.hour).bind(row.job).bind(row.gpu_ns).bind(row.bubble_ns).bind(row.cost_ns).bind(row.cost_low_ns);
    if (!put.bind(row.cost_high_ns).bind(row.unmeasured_ns).run()) return false;
  }
  return true;
}

bool thin_usage_rows(sqlite3* db, int64_t thin_before, int64_t drop_before) {
  const auto run = [db](const char* sql, int64_t before) {
    Statement statement(db, sql);
    return statement.bind(before).run();
  };
  return std::all_of(kThinUsage.begin(), kThinUsage.end(), [&](const char* sql) { return run(sql, thin_before); }) &&
         std::all_of(kDropUsage.begin(), kDropUsage.end(), [&](const char* sql) { return run(sql, drop_before); });
}

bool read_usage_hours(sqlite3* db, int64_t& oldest, int64_t& newest) {
  Statement query(db,
                  "SELECT MIN(oldest), MAX(newest) FROM"
                  " (SELECT MIN(hour) AS oldest, MAX(hour) AS newest FROM task_usage"
                  " UNION ALL SELECT MIN(hour), MAX(hour) FROM training_usage)");
  const bool any = query.row();
  oldest = any ? query.integer(0) : 0;
  newest = any ? query.integer(1) : 0;
  return query.ok();
}

UsageSum::UsageSum(std::string by, int64_t from_hour) : by_(std::move(by)), hour_(from_hour - 1) {}

bool UsageSum::go_on(sqlite3* db) {
  size_t read = 0;
  while (!done_ && read < kSliceRows) {
    if (!within_hour_) {
      if (!begin_hour(db)) return false;
      read += kHourRows;
    } else if (!read_rows(db, kSliceRows, read)) {
      return false;
    }
  }
  return true;
}

// What is of the hour as a whole. A training's cost of an hour is its tasks', by what each has harvested of it.
bool UsageSum::begin_hour(sqlite3* db) {
  Statement next(db,
                 "SELECT MIN(hour) FROM (SELECT MIN(hour) AS hour FROM task_usage WHERE hour > ?1"
                 " UNION ALL SELECT MIN(hour) FROM training_usage WHERE hour > ?1)");
  next.bind(hour_);
  if (!next.row() || next.null(0)) {
    done_ = next.ok();
    return next.ok();
  }
  hour_ = next.integer(0);
  within_hour_ = true;
  last_ = {};
  trainings_.clear();
  Statement harvest(db, "SELECT job, SUM(harvested_ns) FROM task_usage WHERE hour = ? GROUP BY job");
  harvest.bind(hour_);
  while (harvest.row()) trainings_[harvest.bytes(0)].harvested_ns = static_cast<double>(harvest.integer(1));
  Statement trainings(db,
                      "SELECT job, cost_ns, cost_low_ns, cost_high_ns, gpu_ns, bubble_ns, unmeasured_ns"
                      " FROM training_usage WHERE hour = ?");
  trainings.bind(hour_);
  while (trainings.row()) {
    const std::string job = trainings.bytes(0);
    Training& training = trainings_[job];
    training.cost_ns = trainings.real(1), training.low_ns = trainings.real(2), training.high_ns = trainings.real(3);
    if (by_ != "job") continue;
    bus::UsageRow& row = sums_[job].row;
    row.gpu_ns += trainings.integer(4), row.bubble_ns += trainings.integer(5);
    row.unmeasured_ns += trainings.integer(6);
    first_ = std::min(first_, hour_);
  }
  return harvest.ok() && trainings.ok();
}

// From where the last slice has ended, in the order of the table.
bool UsageSum::read_rows(sqlite3* db, size_t most, size_t& read) {
  Statement query(db, ("SELECT task, user, job, account, steps, step_ns, harvested_ns, overrun_ns, " +
                       std::string(by_ == "account" ? kAccount : by_) +
                       " FROM task_usage WHERE hour = ?1 AND (task, user, job, account) > (?2, ?3, ?4, ?5)"
                       " ORDER BY task, user, job, account LIMIT ?6")
                          .c_str());
  query.bind(hour_);
  for (const std::string& part : last_) query.bind(part);
  query.bind(static_cast<int64_t>(most));
  size_t found = 0;
  for (; query.row(); ++found) {
    for (size_t i = 0; i < last_.size(); ++i) last_[i] = query.bytes(static_cast<int>(i));
    const auto& [task, user, job, account] = last_;
    const std::string name = query.bytes(8);
    Sum& sum = sums_[name];
    sum.row.steps += query.unsigned_integer(4), sum.row.step_ns += query.integer(5);
    sum.row.harvested_ns += query.integer(6), sum.row.overrun_ns += query.integer(7);
    if (tasks_.insert(std::hash<std::string>{}(name + '\0' + task)).second) ++sum.row.tasks;
    const Training& training = trainings_[job];
    const double share = training.harvested_ns > 0 ? query.real(6) / training.harvested_ns : 0;
    sum.cost_ns += share * training.cost_ns, sum.low_ns += share * training.low_ns;
    sum.high_ns += share * training.high_ns;
    first_ = std::min(first_, hour_);
  }
  read += found;
  within_hour_ = found == most;
  return query.ok();
}

bus::UsageReply UsageSum::reply() {
  bus::UsageReply reply;
  reply.by = by_;
  reply.rows.reserve(sums_.size());
  for (auto& [name, sum] : sums_) {
    bus::UsageRow& row = reply.rows.emplace_back(std::move(sum.row));
    row.name = name;
    row.cost_ns = std::llround(sum.cost_ns);
    row.cost_low_ns = std::llround(sum.low_ns), row.cost_high_ns = std::llround(sum.high_ns);
  }
  sums_ = {};
  tasks_ = {};
  const auto shown = static_cast<ptrdiff_t>(std::min(kMostUsageRows, reply.rows.size()));
  std::partial_sort(reply.rows.begin(), reply.rows.begin() + shown, reply.rows.end(),
                    [](const bus::UsageRow& a, const bus::UsageRow& b) {
                      return a.harvested_ns != b.harvested_ns ? a.harvested_ns > b.harvested_ns : a.name < b.name;
                    });
  if (first_ != INT64_MAX) reply.from_unix_ms = first_ * 3600 * 1000;
  fold_rest(reply.rows);
  return reply;
}

bool read_account_usage(sqlite3* db, int64_t hour, std::vector<AccountUsageRow>& rows) {
  Statement query(db, ("SELECT hour, " + std::string(kAccount) +
                       ", SUM(harvested_ns) FROM task_usage WHERE hour >= ? GROUP BY 1, 2 ORDER BY 1, 2")
                          .c_str());
  query.bind(hour);
  while (query.row()) rows.push_back({query.integer(0), query.bytes(1), query.integer(2)});
  return query.ok();
}

}  // namespace freeride::manager
