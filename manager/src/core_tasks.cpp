// The books of tasks.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>

#include "core.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMaxMetrics = 8;  // as the plugin ABI has it

bool is_verdict(const std::string& kind) {
  static constexpr std::array<const char*, 9> kKinds = {"finished", "stopped", "evicted",  "overran", "out_of_memory",
                                                        "crashed",  "failed",  "rejected", "lost"};
  return std::find(kKinds.begin(), kKinds.end(), kind) != kKinds.end();
}

int64_t sum(int64_t a, int64_t b) {
  return __builtin_add_overflow(std::max<int64_t>(a, 0), std::max<int64_t>(b, 0), &a) ? INT64_MAX : a;
}

// What a task has done over all its runs. Memory, prediction and the task's own figures are the present run's.
bus::TaskCounters total(const bus::TaskCounters& earlier, const bus::TaskCounters& now) {
  bus::TaskCounters all;
  all.steps = earlier.steps + now.steps;
  all.leases = earlier.leases + now.leases;
  all.skipped = earlier.skipped + now.skipped;
  all.step_ns = sum(earlier.step_ns, now.step_ns);
  all.harvested_ns = sum(earlier.harvested_ns, now.harvested_ns);
  all.overrun_ns = sum(earlier.overrun_ns, now.overrun_ns);
  all.predicted_ns = std::max<int64_t>(now.predicted_ns, 0);
  all.memory_bytes = std::max<int64_t>(now.memory_bytes, 0);
  all.peak_memory_bytes = std::max({earlier.peak_memory_bytes, now.peak_memory_bytes, int64_t{0}});
  for (const auto& [name, value] : now.metrics) {
    if (all.metrics.size() < kMaxMetrics && is_plain(name, 23)) all.metrics[name] = value;
  }
  return all;
}

bus::Verdict checked(bus::Verdict verdict) {
  if (!is_verdict(verdict.kind)) {
    verdict.reason = "its worker gave the unknown verdict " + in_quotes(verdict.kind) + ": " + verdict.reason;
    verdict.kind = "failed";
  }
  verdict.reason = bounded(std::move(verdict.reason), kMaxReason);
  verdict.transition = bounded(std::move(verdict.transition), kMaxTaskName);
  verdict.limit = bounded(std::move(verdict.limit), kMaxReason);
  verdict.log_tail = tail(verdict.log_tail, kMaxLog);
  return verdict;
}

}  // namespace

Task* Core::live_task(const std::string& name) {
  const auto id = live_.find(name);
  return id == live_.end() ? nullptr : &tasks_.at(id->second);
}

const Task* Core::latest_task(const std::string& name) const {
  if (const auto id = live_.find(name); id != live_.end()) return &tasks_.at(id->second);
  for (auto it = tasks_.rbegin(); it != tasks_.rend(); ++it) {
    if (it->second.name() == name) return &it->second;
  }
  return nullptr;
}

Result<Task*> Core::task_to_order(const std::string& name, const char* verb) {
  if (Task* task = live_task(name)) return task;
  const Task* ended = latest_task(name);
  if (ended == nullptr) return Error{Code::kNotFound, "there is no task " + in_quotes(name), "see freeride-ctl tasks"};
  const auto& verdict = ended->state().verdict;
  return Error{Code::kInvalidArgument,
               "cannot " + std::string(verb) + " " + name + ": it has ended (" + verdict.kind +
                   (verdict.reason.empty() ? "" : ": " + verdict.reason) + ")",
               "load it again to run it again"};
}

void Core::set_state(Task& task, const std::string& state, const std::string& reason) {
  auto& mine = task.state();
  if (mine.state == state && mine.reason == reason) return;
  mine.state = state;
  mine.reason = reason;
  outside_.publish(mine);
}

void Core::end_task(Task& task, bus::Verdict verdict) {
  task.phase = Task::Phase::kEnded;
  task.row.info.ended_unix_ms = unix_ms_();
  task.row.reserved_bytes = 0;
  task.state().verdict = checked(std::move(verdict));
  live_.erase(task.name());
  const auto& final = task.state().verdict;
  spdlog::info("task {}: {}{}{}", task.name(), final.kind, final.reason.empty() ? "" : ": ", final.reason);
  if (Worker* worker = worker_of(task.state().worker)) worker->plan_due = true;
  set_state(task, "STOPPED", "");
  save(task);
  replace_failed(task, "the task has ended: " + final.kind + (final.reason.empty() ? "" : ", " + final.reason),
                 Code::kInternal);
  release_content(task.state().sha256);
  schedule_due_ = true;
  trim_history();
}

void Core::requeue(Task& task, const std::string& reason, bool count) {
  const std::string worker_name = task.state().worker;
  if (Worker* worker = worker_of(worker_name)) worker->plan_due = true;
  if (task.row.stopping) {
    bus::Verdict verdict;
    verdict.kind = "stopped";
    verdict.reason = "stopped by the user; " + reason;
    return end_task(task, verdict);
  }
  // It counts only if it had begun to exist there; a worker that dies over and over must not take a task with it for
  // ever.
  if (count && task.phase == Task::Phase::kPlaced && task.state().state != "SUBMITTED") {
    if (task.row.info.restarts >= config_.max_restarts) {
      bus::Verdict verdict;
      verdict.kind = "lost";
      verdict.reason = reason + "; it has been restarted " + std::to_string(task.row.info.restarts) + " times already";
      return end_task(task, verdict);
    }
    ++task.row.info.restarts;
  }
  replace_failed(task, reason + "; the old content goes on", Code::kInternal);
  task.phase = Task::Phase::kQueued;
  task.last_worker = worker_name;
  task.queued_since = reason;
  task.create_id.clear();
  task.create_tries = 0;
  task.row.reserved_bytes = 0;
  task.earlier_before = task.row.earlier;
  task.row.earlier = task.state().counters;
  task.state().worker.clear();
  spdlog::warn("task {}: back in the queue: {}", task.name(), reason);
  set_state(task, "SUBMITTED", reason);
  save(task);
  schedule_due_ = true;
}

void Core::update_from_report(Task& task, const Worker& worker, const bus::TaskReport& report) {
  task.reported_ns = clock_.now_ns();
  const bool first = task.phase != Task::Phase::kPlaced;
  task.phase = Task::Phase::kPlaced;
  task.create_id.clear();
  task.row.info.sandbox = bounded(report.sandbox, kMaxReason);
  // Counters of one run only grow; a report that says otherwise is from before, or not true.
  if (const auto all = total(task.row.earlier, report.counters); all.steps >= task.state().counters.steps) {
    task.state().counters = all;
  }
  update_replacement(task, report);
  static constexpr std::array<const char*, 3> kLive = {"CREATED", "PAUSED", "RUNNING"};
  if (std::find(kLive.begin(), kLive.end(), report.state) == kLive.end()) return;
  std::string reason;
  if (task.row.stopping) {
    reason = "stopping";
  } else if (task.state().paused_by_user) {
    reason = "paused by the user";
  } else if (report.state != "RUNNING" && worker.ranks.empty() && !task.row.info.load.when_idle) {
    reason = "waiting for a trainer on " + worker.name;
  }
  const std::string before = task.state().state;
  set_state(task, report.state, reason);
  // PAUSED and RUNNING alternate with every bubble: not worth the disk.
  if (first || (before != report.state && (before == "SUBMITTED" || before == "CREATED"))) save(task);
}

void Core::save(Task& task) {
  auto saved = store_->save_task(task.row);
  task.unsaved = !saved.ok();
  if (!saved) disk_trouble(saved.error());
}

void Core::trim_history() {
  const size_t ended = tasks_.size() - live_.size();
  // Now and then, many at once.
  if (!forgotten_.empty() || ended <= config_.history + config_.history / 8 + 8) return;
  std::vector<int64_t> old;
  for (const auto& [id, task] : tasks_) {
    if (ended - old.size() <= config_.history) break;
    if (!task.live()) old.push_back(id);
  }
  if (auto removed = store_->remove_tasks(old); !removed) return disk_trouble(removed.error());
  // end_task() runs inside loops over tasks_, where only elements that are not visited may go: so the next tick does
  // it.
  forgotten_.insert(forgotten_.end(), old.begin(), old.end());
}

void Core::answer_task(Ticket ticket, const Task& task, const std::string& log_tail) {
  bus::TaskReply reply;
  reply.task = task.row.info;
  reply.task.log_tail = log_tail;
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

void Core::send_task_order(Task& task) {
  if (!task.on_worker()) return;
  Worker* worker = worker_of(task.state().worker);
  if (worker == nullptr || !worker->up()) return;  // it gets the order with the plan when it registers
  bus::TaskOrder order;
  order.task = task.name();
  order.order = task.order();
  auto id = outside_.send(worker->peer, order);
  if (!id) {
    worker->plan_due = true;
    return;
  }
  pending_[*id] = {Pending::Kind::kOrder, worker->peer, worker->name, task.row.id, {}, 0, clock_.now_ns()};
}

}  // namespace freeride::manager
