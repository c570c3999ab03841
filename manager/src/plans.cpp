#include "plans.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "freeride/base/about.hpp"

namespace freeride::manager {

bus::WorkerPlan Plans::of(const Worker& worker) const {
  bus::WorkerPlan plan = renewal_of(worker);
  std::set<std::string> named;
  for (const auto& rank : worker.ranks) {
    if (!named.insert(rank.job).second) continue;
    for (auto& part : jobs_.wire_plans(rank.job)) plan.holdout.push_back(std::move(part));
  }
  return plan;
}

bus::WorkerPlan Plans::renewal_of(const Worker& worker) const {
  bus::WorkerPlan plan;
  plan.heard = worker.number;
  plan.drain = worker.drain;
  plan.pause_ms = limits_.pause_ns / kNsPerMs;
  plan.stop_ms = limits_.stop_ns / kNsPerMs;
  for (const auto& [id, task] : tasks_.on(worker.name)) {
    const auto reported = worker.tasks.find(task->name());
    const bool there = reported != worker.tasks.end() && reported->second.state != "STOPPED";
    // What the worker has under that name may be something else.
    if (!there) plan.orders.push_back({task->name(), task->order(), task->row.info.epoch});
  }
  for (const auto& [name, run] : runs_.all()) {
    if (run.worker == worker.name) plan.orders.push_back({name, "run", run.epoch});
  }
  for (const auto& [name, report] : worker.tasks) {
    if (report.state == "STOPPED") {
      const std::string how = copies_.settled_as(worker, report);
      if (!how.empty()) plan.settled.push_back({name, how, report.epoch});
    } else if (report.purpose != "profile") {
      plan.orders.push_back(order_for(worker, report));
    }
  }
  return plan;
}

bus::TaskOrder Plans::order_for(const Worker& worker, const bus::TaskReport& report) const {
  const Task* task = tasks_.of_report(report);
  switch (copies_.standing(worker, report)) {
    case policy::Standing::kOrdered:
      if (task->on(worker.name)) return {report.task, task->order(), task->row.info.epoch};
      return {report.task, "pause", report.epoch};
    case policy::Standing::kSuperseded:
      return {report.task, "stop", task->row.info.epoch};
    case policy::Standing::kEnded:
      return {report.task, "stop", report.epoch};
    case policy::Standing::kNewer:
    case policy::Standing::kUnknown:
      break;
  }
  return {report.task, "pause", report.epoch};
}

// By job, a hash of the side tasks that could run beside its ranks, and where. Their order does not count.
std::map<std::string, uint64_t> Plans::side_tasks() const {
  std::map<std::string, uint64_t> found;
  for (const auto& [name, task] : tasks_.live()) {
    const auto& state = task->state();
    if (task->phase != Task::Phase::kPlaced || task->row.stopping || state.paused_by_user) continue;
    if (state.state != "PAUSED" && state.state != "RUNNING") continue;
    const Worker* worker = workers_.find(state.worker);
    if (worker == nullptr || !worker->up() || worker->ranks.empty()) continue;
    std::string what = state.worker + ' ' + state.sha256;
    for (const auto& [key, value] : task->load().params) what += ' ' + key + '=' + value;
    const uint64_t hash = std::hash<std::string>{}(what);
    const std::string* before = nullptr;
    for (const auto& rank : worker->ranks) {
      if (before == nullptr || *before != rank.job) found[rank.job] += hash * 2 + 1;
      before = &rank.job;
    }
  }
  return found;
}

void Plans::replan_jobs(int64_t now, int64_t since_ns) {
  const auto there = side_tasks();
  const auto those_of = [&](const std::string& job) {
    const auto found = there.find(job);
    return found == there.end() ? uint64_t{0} : std::max<uint64_t>(1, found->second);
  };
  for (const auto& job : jobs_.replan(now, since_ns, those_of)) {
    for (auto& [name, worker] : workers_.all()) {
      if (worker.has_rank_of(job)) worker.plan_due = true;
    }
  }
}

void Plans::send_due() {
  for (auto& [name, worker] : workers_.all()) {
    if (!worker.up() || !worker.plan_due || !worker.plan_id.empty()) continue;
    auto id = orders_.send(worker, of(worker), {Pending::Kind::kPlan});
    if (!id) continue;
    worker.plan_due = false;
    worker.plan_id = *id;
  }
}

void Plans::send_work(const Worker& worker, std::vector<bus::TaskWork> work) {
  bus::WorkerPlan plan = of(worker);
  plan.work = std::move(work);
  // Where it is lost, the answer to the worker's next report has the same.
  (void)orders_.send(worker, plan, {Pending::Kind::kPlan});
}

void Plans::unanswered(const std::string& name, const std::string& id) {
  Worker* worker = workers_.find(name);
  if (worker == nullptr || worker->plan_id != id) return;
  worker->plan_due = true;
  worker->plan_id.clear();
}

void Plans::reply(const std::string& name, const std::string& id, const std::optional<Error>& error) {
  Worker* worker = workers_.find(name);
  if (worker == nullptr || worker->plan_id != id) return;
  worker->plan_id.clear();
  if (!error) return;
  spdlog::warn("{} refuses its plan: {}", about_worker(worker->name), error->text());
  worker->plan_due = true;
}

}  // namespace freeride::manager
