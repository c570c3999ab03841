#include "usage_table.hpp"

#include <algorithm>
#include <array>
#include <cmath>

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
// Days stand under their first hour.
constexpr std::array<const char*, 6> kThinUsage = {
    "INSERT INTO task_usage (hour, task, user, job, account, step_ns, harvested_ns, overrun_ns, steps)"
    " SELECT hour - hour % 24, task, user, job, account, SUM(step_ns), SUM(harvested_ns), SUM(overrun_ns),"
    " SUM(steps) FROM task_usage WHERE hour BETWEEN ?1 - 240 AND ?1 - 1 AND hour % 24 != 0 GROUP BY 1, 2, 3, 4, 5"
    " ON CONFLICT (hour, task, user, job, account) DO UPDATE SET step_ns = step_ns + excluded.step_ns,"
    " harvested_ns = harvested_ns + excluded.harvested_ns, overrun_ns = overrun_ns + excluded.overrun_ns,"
    " steps = steps + excluded.steps",
    "DELETE FROM task_usage WHERE hour BETWEEN ?1 - 240 AND ?1 - 1 AND hour % 24 != 0",
    "INSERT INTO training_usage SELECT hour - hour % 24, job, SUM(gpu_ns), SUM(bubble_ns), SUM(cost_ns),"
    " SUM(cost_low_ns), SUM(cost_high_ns), SUM(unmeasured_ns) FROM training_usage WHERE hour BETWEEN ?1 - 240 AND ?1 - "
    "1 AND hour % 24 != 0"
    " GROUP BY 1, 2 ON CONFLICT (hour, job) DO UPDATE SET gpu_ns = gpu_ns + excluded.gpu_ns,"
    " bubble_ns = bubble_ns + excluded.bubble_ns, cost_ns = cost_ns + excluded.cost_ns,"
    " cost_low_ns = cost_low_ns + excluded.cost_low_ns, cost_high_ns = cost_high_ns + excluded.cost_high_ns,"
    " unmeasured_ns = unmeasured_ns + excluded.unmeasured_ns",
    "DELETE FROM training_usage WHERE hour BETWEEN ?1 - 240 AND ?1 - 1 AND hour % 24 != 0",
    "DELETE FROM task_usage WHERE hour < ?1 - 9528",
    "DELETE FROM training_usage WHERE hour < ?1 - 9528"};
// A row of before there were accounts is its user's.
constexpr const char* kAccount = "CASE WHEN account = '' THEN user ELSE account END";
constexpr int64_t kHoursKept = 72;
constexpr size_t kMostUsageRows = 1000;

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

bool thin(sqlite3* db, int64_t before_hour) {
  return std::all_of(kThinUsage.begin(), kThinUsage.end(), [&](const char* sql) {
    Statement statement(db, sql);
    return statement.bind(before_hour).run();
  });
}

}  // namespace

bool add_usage_rows(sqlite3* db, const std::map<TaskUsageKey, TaskUsage>& tasks,
                    const std::vector<TrainingUsageRow>& trainings) {
  int64_t latest = 0;
  Statement put_task(db, kAddTaskUsage);
  for (const auto& [key, usage] : tasks) {
    const auto& [hour, task, user, job, account] = key;
    latest = std::max(latest, hour);
    put_task.again().bind(hour).bind(task).bind(user).bind(job).bind(usage.step_ns).bind(usage.harvested_ns);
    if (!put_task.bind(usage.overrun_ns).bind(usage.steps).bind(account).run()) return false;
  }
  for (const auto& row : trainings) {
    latest = std::max(latest, row.hour);
    Statement put(db, kAddTrainingUsage);
    put.bind(row.hour).bind(row.job).bind(row.gpu_ns).bind(row.bubble_ns).bind(row.cost_ns).bind(row.cost_low_ns);
    if (!put.bind(row.cost_high_ns).bind(row.unmeasured_ns).run()) return false;
  }
  return thin(db, latest - latest % 24 - kHoursKept);
}

bool read_usage(sqlite3* db, const std::string& by, int64_t hour, bus::UsageReply& reply) {
  reply.by = by;
  const std::string name = by == "account" ? kAccount : by == "user" ? "t.user" : by == "job" ? "t.job" : "t.task";
  // A training's cost of an hour is its tasks', by what each has harvested of it.
  Statement query(db,
                  ("WITH hours AS (SELECT hour, job, SUM(harvested_ns) AS harvested_ns FROM task_usage WHERE hour >= ?1"
                   " GROUP BY hour, job), shares AS (SELECT " +
                   name +
                   " AS name, t.task AS task, t.steps, t.step_ns, t.harvested_ns, t.overrun_ns, t.hour,"
                   " CASE WHEN h.harvested_ns > 0 THEN 1.0 * t.harvested_ns / h.harvested_ns ELSE 0 END AS share,"
                   " r.cost_ns, r.cost_low_ns, r.cost_high_ns FROM task_usage t"
                   " JOIN hours h ON h.hour = t.hour AND h.job = t.job"
                   " LEFT JOIN training_usage r ON r.hour = t.hour AND r.job = t.job WHERE t.hour >= ?1)"
                   " SELECT name, COUNT(DISTINCT task), SUM(steps), SUM(step_ns), SUM(harvested_ns), SUM(overrun_ns),"
                   " TOTAL(share * cost_ns), TOTAL(share * cost_low_ns), TOTAL(share * cost_high_ns), MIN(hour)"
                   " FROM shares GROUP BY name ORDER BY 5 DESC, 1")
                      .c_str());
  query.bind(hour);
  int64_t first = INT64_MAX;
  std::map<std::string, size_t> places;
  while (query.row()) {
    bus::UsageRow row;
    row.name = query.bytes(0);
    row.tasks = query.unsigned_integer(1);
    row.steps = query.unsigned_integer(2);
    row.step_ns = query.integer(3);
    row.harvested_ns = query.integer(4);
    row.overrun_ns = query.integer(5);
    row.cost_ns = std::llround(query.real(6));
    row.cost_low_ns = std::llround(query.real(7));
    row.cost_high_ns = std::llround(query.real(8));
    first = std::min(first, query.integer(9));
    places[row.name] = reply.rows.size();
    reply.rows.push_back(std::move(row));
  }
  if (!query.ok()) return false;
  if (by == "job") {
    Statement trainings(db,
                        "SELECT job, SUM(gpu_ns), SUM(bubble_ns), SUM(unmeasured_ns), MIN(hour) FROM training_usage"
                        " WHERE hour >= ? GROUP BY job ORDER BY 1");
    trainings.bind(hour);
    while (trainings.row()) {
      const auto [place, fresh] = places.emplace(trainings.bytes(0), reply.rows.size());
      if (fresh) reply.rows.emplace_back().name = trainings.bytes(0);
      bus::UsageRow& row = reply.rows[place->second];
      row.gpu_ns = trainings.integer(1);
      row.bubble_ns = trainings.integer(2);
      row.unmeasured_ns = trainings.integer(3);
      first = std::min(first, trainings.integer(4));
    }
    if (!trainings.ok()) return false;
  }
  if (first != INT64_MAX) reply.from_unix_ms = first * 3600 * 1000;
  fold_rest(reply.rows);
  return true;
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
