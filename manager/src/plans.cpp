#include "plans.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

namespace freeride::manager {

bus::WorkerPlan Plans::of(const Worker& worker) const {
  bus::WorkerPlan plan;
  std::set<std::string> named;
  for (const auto& rank : worker.ranks) {
    if (!named.insert(rank.job).second) continue;
    for (auto& part : jobs_.wire_plans(rank.job)) plan.holdout.push_back(std::move(part));
  }
  const auto name = [&plan](const std::string& task, const char* what) {
    bus::TaskOrder order;
    order.task = task;
    order.order = what;
    plan.orders.push_back(order);
  };
  for (const auto& [task_name, task] : tasks_.live()) {
    if (task->on(worker.name)) name(task_name, task->order());
  }
  for (const auto& [run_name, run] : runs_.all()) {
    if (run.worker == worker.name) name(run_name, "run");
  }
  return plan;
}

// A hash of the side tasks that could run beside the job's ranks, and where; 0: none.
uint64_t Plans::side_tasks_of(const std::string& job) const {
  std::vector<std::string> found;
  for (const auto& [name, task] : tasks_.live()) {
    const auto& state = task->state();
    if (task->phase != Task::Phase::kPlaced || task->row.stopping || state.paused_by_user) continue;
    if (state.state != "PAUSED" && state.state != "RUNNING") continue;
    const Worker* worker = workers_.find(state.worker);
    if (worker == nullptr || !worker->up() || !worker->has_rank_of(job)) continue;
    std::string what = state.worker + ' ' + state.sha256;
    for (const auto& [key, value] : task->load().params) what += ' ' + key + '=' + value;
    found.push_back(std::move(what));
  }
  if (found.empty()) return 0;
  std::sort(found.begin(), found.end());
  std::string all;
  for (const auto& one : found) all += one + '\n';
  return std::max<uint64_t>(1, std::hash<std::string>{}(all));
}

void Plans::replan_jobs(int64_t now, int64_t since_ns) {
  for (const auto& job : jobs_.replan(now, since_ns, [this](const std::string& name) { return side_tasks_of(name); })) {
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
  spdlog::warn("worker {} refuses its plan: {}", worker->name, error->text());
  worker->plan_due = true;
}

}  // namespace freeride::manager
