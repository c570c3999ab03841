#include "lifecycle.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>

#include "freeride/base/about.hpp"
#include "text.hpp"
#include "verdicts.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

using policy::Cause;
using policy::Standing;
using policy::VerdictKind;
using policy::Why;

constexpr size_t kMaxMetrics = 8;  // as the plugin ABI has it

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
    if (all.metrics.size() < kMaxMetrics && is_metric_name(name)) all.metrics[name] = value;
  }
  return all;
}

constexpr size_t kMostFunctionName = 64;  // as on the shim page

std::vector<bus::ShimCounters> bounded_shim(std::vector<bus::ShimCounters> said) {
  said.resize(std::min<size_t>(said.size(), 1));
  for (bus::ShimCounters& shim : said) {
    shim.too_long_name = bounded(std::move(shim.too_long_name), kMostFunctionName);
    shim.waited_ns = std::max<int64_t>(shim.waited_ns, 0);
    shim.too_long_ns = std::max<int64_t>(shim.too_long_ns, 0);
    shim.lease_longest_ns = std::max<int64_t>(shim.lease_longest_ns, 0);
    shim.late_most_ns = std::max<int64_t>(shim.late_most_ns, 0);
    std::map<std::string, uint64_t> unknown;
    for (const auto& [name, calls] : shim.unknown) {
      if (unknown.size() < bus::ShimCounters::kMostNames) unknown[bounded(name, kMostFunctionName)] = calls;
    }
    shim.unknown = std::move(unknown);
  }
  return said;
}

// Whether what the worker runs is what the task is, or is about to be.
bool is_of(const Task& task, const bus::TaskReport& report) {
  if (report.revision == task.row.info.revision) return true;
  const auto& replacement = task.row.info.replacement;
  return report.revision == replacement.revision && report.replacement.revision == replacement.revision &&
         report.replacement.state == "done" && !replacement.load.plugin.empty();
}

}  // namespace

void Lifecycle::end(Task& task, bus::Verdict verdict) {
  the_.workers.plan_is_due(task.state().worker);
  the_.due.changed.insert(task.state().worker);
  the_.tasks.end(task, std::move(verdict));
  const auto& final = task.state().verdict;
  the_.replacements.fail(task, "the task has ended: " + final.kind + (final.reason.empty() ? "" : ", " + final.reason),
                         Code::kInternal);
  the_.contents.release(task.state().sha256);
  the_.due.raised = true;
  the_.tasks.trim_history();
}

// All orders rest on what the worker has reported: until then it may execute, and somebody may have told it to.
int64_t Lifecycle::fence_of(const std::string& name) const {
  const Worker* worker = the_.workers.find(name);
  const int64_t heard_ns = worker == nullptr ? started_ns_ : std::max(worker->heard_ns, started_ns_);
  return policy::place_again_ns(heard_ns, the_.config.orders);
}

void Lifecycle::requeue(Task& task, const std::string& reason, bool count, Left left) {
  const std::string worker = task.state().worker;
  the_.workers.plan_is_due(worker);
  the_.due.changed.insert(worker);
  if (task.row.stopping)
    return end(task, verdict_of(VerdictKind::kStopped, Cause::kOrder, "stopped by the user; " + reason));
  // A worker that dies over and over must not take a task with it for ever, nor a task its workers. The state is no
  // excuse: it is what the task says of itself.
  if (task.load().restart == "no" && task.phase == Task::Phase::kPlaced)
    return end(task, verdict_of(VerdictKind::kLost, Cause::kWorker, reason + "; it is not to be restarted"));
  std::string since = reason;
  if (count && task.phase == Task::Phase::kPlaced) {
    const RestartLimit& limit = the_.config.restarts;
    if (!task.restarts.count(the_.clock.now_ns(), limit)) {
      return end(task, verdict_of(VerdictKind::kLost, Cause::kWorker,
                                  reason + "; it has been restarted " + std::to_string(limit.most) + " times within " +
                                      std::to_string(limit.interval_ns / kNsPerSec) + " s already"));
    }
    ++task.row.info.restarts;
    if (const int64_t pause_ns = task.restarts.pause_ns(); pause_ns > 0) {
      task.not_before_ns = std::max(task.not_before_ns, the_.clock.now_ns() + pause_ns);
      since += "; it is tried again after " + std::to_string(pause_ns / kNsPerSec) + " s";
    }
  }
  the_.replacements.fail(task, reason + "; the old content continues", Code::kInternal);
  // Who has not made it yet has nothing of it, and who only says that it has it is not believed with its state.
  const bool made = task.state().state != "SUBMITTED";
  if (!task.claimed && (made || task.row.info.last_worker.empty())) task.row.info.last_worker = worker;
  task.phase = Task::Phase::kQueued;
  task.queued_since = since;
  task.create_id.clear();
  task.create_tries = 0;
  task.row.reserved_bytes = 0;
  task.earlier_before = task.row.earlier;
  task.row.earlier = task.state().counters;
  task.state().worker.clear();
  the_.tasks.moved(task);
  if (left == Left::kPerhaps) {
    task.fenced_until_ns = std::max(task.fenced_until_ns, fence_of(worker));
  } else {
    task.row.info.epoch = the_.tasks.next_epoch();  // of that one nothing is believed any more
  }
  spdlog::warn("{}: back in the queue: {}", about_task(task.name()), since);
  const bool fenced = task.fenced_until_ns > the_.clock.now_ns();
  the_.tasks.wait(task, fenced ? Why::kFenced : Why::kQueued, fenced ? worker : "");
  the_.tasks.save(task);
  the_.due.raised = true;
}

void Lifecycle::requeue_all(const std::string& worker, const std::string& reason, bool count) {
  const auto there = the_.tasks.on(worker);  // a copy: they leave it
  const TaskBook::Together together(the_.tasks);
  for (const auto& [id, task] : there) requeue(*task, reason, count, Left::kPerhaps);
}

void Lifecycle::requeue_missing(const Worker& worker, const std::string& reason, bool creating_too) {
  const auto there = the_.tasks.on(worker.name);
  for (const auto& [id, one] : there) {
    Task& task = *one;
    const auto reported = worker.tasks.find(task.name());
    if (reported != worker.tasks.end() && the_.copies.standing(worker, reported->second) == Standing::kOrdered)
      continue;
    if (task.phase == Task::Phase::kCreating && !creating_too) continue;
    // Of a process that has ended nothing is left; one that goes on takes no order twice.
    requeue(task, reason, true, Left::kNothing);
  }
}

void Lifecycle::note_fault(const bus::Verdict& verdict, const Worker& worker, const std::string& sha256,
                           const std::string& user, const std::string& task) {
  if (!verdict.gpu_fault || !worker.on_gpu()) return;
  const std::string job = worker.ranks.empty() ? "" : worker.ranks.front().job;
  if (!the_.faults.note({the_.tasks.unix_ms(), sha256, user, job, task})) return;
  the_.due.raised = true;
  for (auto& [id, other] : the_.tasks.all()) {
    if (!other.on_worker() || other.name() == task) continue;
    const Worker* there = the_.workers.find(other.state().worker);
    if (there != nullptr && is_blocked(other, *there)) requeue(other, "taken off its device", false, Left::kPerhaps);
  }
}

void Lifecycle::take_report(Worker& worker, const bus::TaskReport& report, bool leaving) {
  const bool ended = report.state == "STOPPED";
  Task* task = the_.tasks.live(report.task);
  Standing standing = the_.copies.standing(worker, report);
  if (standing == Standing::kNewer && claim(*task, worker, report)) standing = Standing::kOrdered;
  if (standing == Standing::kOrdered && task->phase == Task::Phase::kQueued) {
    if (is_of(*task, report) && !is_blocked(*task, worker)) {
      // How a copy has ended counts only where epochs tell which one it was.
      if (!ended || worker.tells_epochs()) adopt(*task, worker);
    } else if (!ended) {
      disown(*task);
    }
  }
  if (standing != Standing::kOrdered || !task->on(worker.name)) {
    if (!ended && !worker.tells_epochs()) worker.plan_due = true;  // others have it with the answer to their report
    return;
  }
  if (!is_of(*task, report)) return;  // of before it was replaced in the queue; it goes before the new one is made
  if (!ended) return update(*task, worker, report);
  // What is told of a run before the present one: the new one has been ordered, but has not been made yet.
  if (task->phase == Task::Phase::kCreating && !task->create_id.empty()) return;
  update(*task, worker, report);
  const auto& verdict = report.verdict;
  const VerdictKind kind = kind_of(verdict);
  note_fault(verdict, worker, task->state().sha256, task->load().user, task->name());
  if (kind == VerdictKind::kLost) {
    const bool ours = policy::cause_of(verdict.cause) == Cause::kExpired;  // this manager was away
    return requeue(*task, verdict.reason.empty() ? "its processes were lost" : bounded(verdict.reason, kMaxReason),
                   !ours, Left::kNothing);
  }
  if (kind == VerdictKind::kStopped && !task->row.stopping) {
    // Not the user's wish, so the worker's: it is going down, or it took the task for one that should not be there.
    task->not_before_ns = the_.clock.now_ns() + 2 * kNsPerSec;
    return requeue(*task,
                   "worker " + worker.name +
                       (leaving             ? " went down"
                        : worker.drain != 0 ? " is drained"
                                            : " stopped it"),
                   !leaving && worker.drain == 0, Left::kNothing);
  }
  if (restarts_failed(*task, verdict)) {
    const int64_t pause_s = int64_t{1} << std::min<uint32_t>(task->row.info.failures, 6);
    ++task->row.info.failures;
    ++task->row.info.restarts;
    task->not_before_ns = the_.clock.now_ns() + pause_s * kNsPerSec;
    return requeue(*task,
                   "it has ended as " + verdict.kind + " (" + bounded(verdict.reason, kMaxReason / 2) +
                       "), and is started again after " + std::to_string(pause_s) + " s",
                   false, Left::kNothing);
  }
  if (kind == VerdictKind::kStopped && is_over_time(*task, the_.clock.now_ns())) {
    bus::Verdict late = verdict;
    late.reason = "its time was over (--time), so it was stopped";
    late.limit = "time " + std::to_string(task->load().time_limit_s) + " s";
    return end(*task, std::move(late));
  }
  end(*task, verdict);
}

// A fault of the GPU stalls training, so whoever wants another loads the task again.
bool Lifecycle::restarts_failed(const Task& task, const bus::Verdict& verdict) const {
  const VerdictKind kind = kind_of(verdict);
  return !verdict.gpu_fault && task.load().restart == "on-failure" && !task.row.stopping &&
         task.row.info.failures < task.load().restarts_most && kind != VerdictKind::kRejected &&
         policy::is_plugins_fault(kind);
}

bool Lifecycle::is_blocked(const Task& task, const Worker& worker) const {
  const std::string job = worker.ranks.empty() ? "" : worker.ranks.front().job;
  return worker.on_gpu() && the_.faults.blocked(task.state().sha256, task.load().user, job).has_value();
}

// A manager that knew more has ordered it: this one's database is older. After the start, and before there can be two
// that execute, all workers that are there have told theirs; the newest counts. Until then it is paused, like every
// other.
bool Lifecycle::claim(Task& task, const Worker& worker, const bus::TaskReport& report) {
  const int64_t now = the_.clock.now_ns();
  task.claimed_epoch = std::max(task.claimed_epoch, report.epoch);
  task.claimed_ns = now;
  if (now < policy::place_again_ns(started_ns_, the_.config.orders) || report.epoch < task.claimed_epoch) return false;
  if (task.on_worker() && !task.on(worker.name)) {
    if (the_.workers.find_up(task.state().worker) != nullptr) return false;
    requeue(task, "worker " + worker.name + " has it by a later order", false, Left::kPerhaps);
  }
  if (!task.live()) return false;
  spdlog::warn("{}: worker {} has it by a later order than this manager's state file: that one counts",
               about_task(task.name()), worker.name);
  task.row.info.epoch = report.epoch;
  task.row.info.last_worker.clear();
  task.claimed = true;
  the_.tasks.save(task);
  return true;
}

// Whatever is there is to go.
void Lifecycle::disown(Task& task) {
  task.fenced_until_ns = policy::place_again_ns(the_.clock.now_ns(), the_.config.orders);
  task.row.info.epoch = the_.tasks.next_epoch();
  the_.tasks.save(task);
}

// It was queued again, and has been there all the time.
void Lifecycle::adopt(Task& task, const Worker& worker) {
  spdlog::info("{}: still alive on {}", about_task(task.name()), worker.name);
  task.state().worker = worker.name;
  task.row.reserved_bytes = the_.capacity.need_bytes(task);
  task.row.earlier = task.earlier_before;
  if (task.row.info.restarts > 0) --task.row.info.restarts;  // it was not started anew after all
  task.restarts.take_back();
  task.phase = Task::Phase::kCreating;
  the_.tasks.moved(task);
  the_.due.changed.insert(worker.name);
}

void Lifecycle::update(Task& task, const Worker& worker, const bus::TaskReport& report) {
  task.reported_ns = the_.clock.now_ns();
  task.fenced_until_ns = task.claimed_ns = 0;
  const bool first = task.phase != Task::Phase::kPlaced;
  task.phase = Task::Phase::kPlaced;
  task.create_id.clear();
  task.row.info.sandbox = bounded(report.sandbox, kMaxReason);
  task.row.info.shim = bounded_shim(report.shim);
  // Counters of one run only grow; a report that says otherwise is from before, or not true.
  if (const auto all = total(task.row.earlier, report.counters); all.steps >= task.state().counters.steps) {
    const std::string job = worker.ranks.empty() ? "" : worker.ranks.front().job;
    the_.usage.add(task.row.info, job, task.state().counters, all, the_.tasks.unix_ms());
    task.state().counters = all;
  }
  the_.replacements.take_report(task, report);
  static constexpr std::array<const char*, 3> kLive = {"CREATED", "PAUSED", "RUNNING"};
  if (std::find(kLive.begin(), kLive.end(), report.state) == kLive.end()) return;
  const std::string before = task.state().state;
  explain(task, worker, report);
  // PAUSED and RUNNING alternate with every bubble: not worth the disk.
  if (first || (before != report.state && (before == "SUBMITTED" || before == "CREATED"))) TaskBook::save_later(task);
}

// What users see of a task that its worker has: the manager's orders first,
// then the worker's own word. A worker of an earlier version says nothing.
void Lifecycle::explain(Task& task, const Worker& worker, const bus::TaskReport& report) {
  Why why = policy::why_of(report.why).value_or(Why::kNone);
  if (task.row.stopping) {
    why = Why::kStopping;
  } else if (task.state().paused_by_user) {
    why = Why::kPausedByUser;
  } else if (why == Why::kNone && report.state != "RUNNING" && worker.ranks.empty() && !task.load().when_idle) {
    why = Why::kDeviceIdle;
  }
  policy::WhyDetail detail;
  if (policy::names_worker(why)) detail.what = worker.name;
  if (!worker.ranks.empty()) detail.duty_pct = the_.jobs.duty_pct(worker.ranks.front().job);
  detail.step_ns = report.counters.predicted_ns;
  detail.bubble_ns = report.bubble_ns;
  detail.leases = report.counters.leases;
  detail.skipped = report.counters.skipped;
  if (const auto& shim = task.row.info.shim; why == Why::kWorkTooLong && !shim.empty()) {
    detail.what = shim.front().too_long_name;
    detail.step_ns = shim.front().too_long_ns;
    detail.bubble_ns = shim.front().lease_longest_ns;
  }
  the_.tasks.set_state(task, report.state, why, std::move(detail));
}

void Lifecycle::requeue_silent(int64_t now) {
  for (auto& [id, task] : the_.tasks.all()) {
    if (!task.on_worker()) continue;
    if (const Worker* worker = the_.workers.find_up(task.state().worker); worker == nullptr) {
      // Only after a restart of ours: workers get three times the usual patience to find us again.
      if (now - std::max(task.reported_ns, started_ns_) > 3 * the_.config.worker_timeout_ns)
        requeue(task, "worker " + task.state().worker + " did not come back", true, Left::kPerhaps);
    } else if (task.phase == Task::Phase::kPlaced && now - task.reported_ns > the_.config.worker_timeout_ns) {
      requeue(task, "worker " + worker->name + " has it no more", true, Left::kNothing);
    }
  }
}

}  // namespace freeride::manager
