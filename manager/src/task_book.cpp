#include "task_book.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "freeride/base/about.hpp"
#include "text.hpp"
#include "verdicts.hpp"

namespace freeride::manager {
namespace {

constexpr int64_t kSaveRetry = 5 * kNsPerSec;
constexpr int64_t kSaveSlice = 20 * kNsPerMs;
constexpr int64_t kTrimPauseNs = 60 * kNsPerSec;
constexpr int64_t kRequestMemoryMs = 24LL * 3600 * 1000;
constexpr int64_t kLongestMs = 100LL * 366 * 24 * 3600 * 1000;
constexpr uint64_t kMostEpoch = uint64_t{1} << 62;  // whoever says more lies

}  // namespace

std::string instance_of(const TaskRow& row) {
  if (!row.info.instance.empty()) return row.info.instance;
  return std::to_string(row.id) + "-" + std::to_string(row.info.submitted_unix_ms);
}

TaskBook::TaskBook(StateStore& store, Outside& outside, const Clock& clock, DiskTrouble& trouble,
                   std::function<int64_t()> unix_ms, size_t history)
    : store_(store),
      outside_(outside),
      clock_(clock),
      trouble_(trouble),
      unix_ms_(std::move(unix_ms)),
      history_(history) {}

Status TaskBook::restore(int64_t fenced_until_ns) {
  auto rows = store_.tasks();
  if (!rows) return rows.error();
  const auto newest = store_.newest_request_ms();
  if (!newest) return newest.error();
  requests_age_ = policy::AgeClock(*newest);
  (void)requests_age_.at(unix_ms_(), clock_.now_ns());
  for (auto& row : *rows) {
    const int64_t id = row.id;
    next_id_ = std::max(next_id_, id + 1);
    see_epoch(row.info.epoch);
    Task& task = tasks_[id];
    task.row = std::move(row);
    const int64_t age_ms = std::clamp<int64_t>(unix_ms_() - task.row.info.placed_unix_ms, 0, kLongestMs);
    task.begun_ns = clock_.now_ns() - age_ms * kNsPerMs;
    if (task.state().state == "STOPPED") {
      task.phase = Task::Phase::kEnded;
      continue;
    }
    live_[task.name()] = &task;
    task.fenced_until_ns = fenced_until_ns;
    if (task.state().worker.empty()) {
      explain(task, policy::Why::kFenced);
      continue;
    }
    task.phase = Task::Phase::kPlaced;
    moved(task);
    task.reported_ns = clock_.now_ns();
    policy::WhyDetail detail;
    detail.what = task.state().worker;
    detail.since = "the manager was restarted";
    explain(task, policy::Why::kWorkerSilent, std::move(detail));
  }
  return {};
}

uint64_t TaskBook::next_epoch() {
  highest_epoch_ = std::max(highest_epoch_ + 1, static_cast<uint64_t>(std::max<int64_t>(1, unix_ms_())));
  return highest_epoch_;
}

void TaskBook::see_epoch(uint64_t epoch) {
  if (epoch <= kMostEpoch) highest_epoch_ = std::max(highest_epoch_, epoch);
}

Task* TaskBook::by_id(int64_t id) {
  const auto found = tasks_.find(id);
  return found == tasks_.end() ? nullptr : &found->second;
}

Task* TaskBook::live(const std::string& name) {
  const auto found = live_.find(name);
  return found == live_.end() ? nullptr : found->second;
}

const Task* TaskBook::of_report(const bus::TaskReport& report) const {
  const auto found = live_.find(report.task);
  // A worker of an earlier version tells the name alone.
  if (report.instance.empty()) return found == live_.end() ? nullptr : found->second;
  if (found != live_.end() && instance_of(found->second->row) == report.instance) return found->second;
  for (auto it = tasks_.rbegin(); it != tasks_.rend(); ++it) {
    if (it->second.name() == report.task && instance_of(it->second.row) == report.instance) return &it->second;
  }
  return nullptr;
}

const Task* TaskBook::of_instance(const std::string& instance) const {
  // Its own begin with the row's number; one that was taken over from a worker may be called anything.
  int64_t id = 0;
  std::from_chars(instance.data(), instance.data() + instance.size(), id);
  if (const auto found = tasks_.find(id); found != tasks_.end() && instance_of(found->second.row) == instance)
    return &found->second;
  for (const auto& [number, task] : tasks_) {
    if (!task.row.info.instance.empty() && task.row.info.instance == instance) return &task;
  }
  return nullptr;
}

const Task* TaskBook::latest(const std::string& name) const {
  if (const auto found = live_.find(name); found != live_.end()) return found->second;
  for (auto it = tasks_.rbegin(); it != tasks_.rend(); ++it) {
    if (it->second.name() == name) return &it->second;
  }
  return nullptr;
}

Result<Task*> TaskBook::to_order(const std::string& name, const char* verb) {
  if (Task* task = live(name)) return task;
  const Task* ended = latest(name);
  if (ended == nullptr) return Error{Code::kNotFound, "there is no task " + in_quotes(name), "see freeride-ctl tasks"};
  const auto& verdict = ended->state().verdict;
  return Error{Code::kInvalidArgument,
               "cannot " + std::string(verb) + " " + name + ": it has ended (" + verdict.kind +
                   (verdict.reason.empty() ? "" : ": " + verdict.reason) + ")",
               "load it again to run it again"};
}

const std::map<int64_t, Task*>& TaskBook::on(const std::string& worker) const {
  static const std::map<int64_t, Task*> kNone;
  const auto found = on_.find(worker);
  return found == on_.end() ? kNone : found->second;
}

void TaskBook::moved(Task& task) {
  const std::string now = task.on_worker() ? task.state().worker : std::string();
  if (now == task.listed_on) return;
  if (!task.listed_on.empty()) {
    const auto before = on_.find(task.listed_on);
    before->second.erase(task.row.id);
    if (before->second.empty()) on_.erase(before);
  }
  if (!now.empty()) on_[now][task.row.id] = &task;
  task.listed_on = now;
}

Result<Task*> TaskBook::add(TaskRow row, const std::string& request_id) {
  Task made;
  made.row = std::move(row);
  made.row.id = next_id_;
  made.state().state = "SUBMITTED";
  explain(made, policy::Why::kQueued);
  if (auto added = store_.add_task(made.row, request_id, made.row.info.submitted_unix_ms); !added) {
    trouble_.say(added.error());
    return added.error();
  }
  Task& task = tasks_[next_id_++] = std::move(made);
  live_[task.name()] = &task;
  spdlog::info("{}: submitted ({}, {})", about_task(task.name()), task.load().plugin,
               task.state().sha256.substr(0, 12));
  publish(task);
  return &task;
}

Status TaskBook::save_with(const Task& task, const std::string& request_id) {
  auto added = store_.add_task(task.row, request_id, unix_ms_());
  if (!added) trouble_.say(added.error());
  return added;
}

Status TaskBook::try_save(Task& task) {
  auto saved = store_.save_task(task.row);
  task.unsaved = !saved.ok();
  if (saved && store_.in_batch()) together_.push_back(task.row.id);
  if (!saved) trouble_.say(saved.error());
  return saved;
}

void TaskBook::explain(Task& task, policy::Why why, policy::WhyDetail detail) {
  task.why = why;
  task.why_detail = std::move(detail);
  task.state().why = policy::why_name(why);
  task.state().reason = policy::render_why(why, task.why_detail);
}

void TaskBook::set_state(Task& task, const std::string& state, policy::Why why, policy::WhyDetail detail) {
  const bool same = task.state().state == state && task.why == why && task.why_detail.what == detail.what &&
                    task.why_detail.since == detail.since;
  task.state().state = state;
  explain(task, why, std::move(detail));
  if (!same) publish(task);
}

void TaskBook::wait(Task& task, policy::Why why, const std::string& what) {
  policy::WhyDetail detail;
  detail.what = what;
  detail.since = task.queued_since;
  set_state(task, "SUBMITTED", why, std::move(detail));
}

void TaskBook::publish_all() {
  for (const auto& [id, task] : tasks_) publish(task);
}

void TaskBook::answer(Ticket ticket, const Task& task, const std::string& log_tail) {
  bus::TaskReply reply;
  reply.task = task.row.info;
  reply.task.log_tail = log_tail;
  outside_.answer(ticket, Reply(std::move(reply)));
}

void TaskBook::end(Task& task, bus::Verdict verdict) {
  task.phase = Task::Phase::kEnded;
  moved(task);
  task.row.info.ended_unix_ms = unix_ms_();
  task.row.reserved_bytes = 0;
  task.state().verdict = checked(std::move(verdict));
  live_.erase(task.name());
  const auto& final = task.state().verdict;
  spdlog::info("{}: {}{}{}", about_task(task.name()), final.kind, final.reason.empty() ? "" : ": ", final.reason);
  set_state(task, "STOPPED", policy::Why::kNone);
  save(task);
}

void TaskBook::trim_history() {
  const size_t ended = tasks_.size() - live_.size();
  // Now and then, many at once.
  if (!forgotten_.empty() || ended <= history_ + history_ / 8 + 8) return;
  std::set<std::string> awaited;  // by tasks that are to follow them
  for (const auto& [name, task] : live_)
    awaited.insert(task->row.info.waits_for.begin(), task->row.info.waits_for.end());
  std::vector<int64_t> old;
  for (const auto& [id, task] : tasks_) {
    if (ended - old.size() <= history_) break;
    if (!task.live() && awaited.count(instance_of(task.row)) == 0) old.push_back(id);
  }
  if (auto removed = store_.remove_tasks(old); !removed) return trouble_.say(removed.error());
  // Tasks end inside loops over tasks_, where only elements that are not visited may go: so the next tick does it.
  forgotten_.insert(forgotten_.end(), old.begin(), old.end());
}

void TaskBook::forget() {
  for (const int64_t id : std::exchange(forgotten_, {})) erase(id);
  // All of them are looked at for that.
  const int64_t now = clock_.now_ns();
  if (now < trim_requests_ns_) return;
  trim_requests_ns_ = now + kTrimPauseNs;
  if (auto trimmed = store_.forget_requests(requests_age_.at(unix_ms_(), now) - kRequestMemoryMs); !trimmed)
    trouble_.say(trimmed.error());
}

void TaskBook::erase(int64_t id) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;
  bus::TaskState state;
  state.task = found->second.name(), state.state = bus::TaskState::kRemoved;
  tasks_.erase(found);
  // The topic is of the name: it tells of another task where one has it, too.
  const Task* other = latest(state.task);
  outside_.publish(other != nullptr ? other->state() : state);
}

Status TaskBook::remove(const Task& task) {
  const int64_t id = task.row.id;
  if (auto removed = store_.remove_tasks({id}); !removed) {
    trouble_.say(removed.error());
    return removed;
  }
  forgotten_.erase(std::remove(forgotten_.begin(), forgotten_.end(), id), forgotten_.end());
  erase(id);
  return {};
}

void TaskBook::save_unsaved(int64_t now) {
  if (now - retry_saved_ns_ < kSaveRetry) return;
  retry_saved_ns_ = now;
  save_some(clock_.now_ns() + kSaveSlice);
}

void TaskBook::save_some(int64_t until_ns) {
  Together together(*this);
  for (auto& [id, task] : tasks_) {
    if (!task.unsaved) continue;
    save(task);
    if (task.unsaved) return;  // the disk still refuses
    if (clock_.now_ns() >= until_ns) {
      retry_saved_ns_ = 0;
      return;
    }
  }
}

void TaskBook::take_back(int64_t id) {
  if (const Task* task = by_id(id)) live_.erase(task->name());
  erase(id);
}

void TaskBook::Together::drop() {
  if (!std::exchange(batch_, false)) return;
  book_.store_.drop_batch();
  for (const int64_t id : std::exchange(book_.together_, {})) {
    if (Task* task = book_.by_id(id)) task->unsaved = true;
  }
}

Status TaskBook::Together::end() {
  if (!std::exchange(batch_, false)) return {};
  auto saved = book_.store_.end_batch();
  for (const int64_t id : std::exchange(book_.together_, {})) {
    if (Task* task = saved ? nullptr : book_.by_id(id)) task->unsaved = true;
  }
  if (!saved) book_.trouble_.say(saved.error());
  return saved;
}

void TaskBook::flush() {
  for (auto& [id, task] : tasks_) task.unsaved = task.unsaved || task.on_worker();  // for their counters
  save_some(INT64_MAX);
}

void TaskBook::excuse(int64_t now_ns) {
  for (auto& [name, task] : live_) task->reported_ns = std::max(task->reported_ns, now_ns);
}

void TaskBook::excuse_orders(int64_t now_ns) {
  for (auto& [name, task] : live_) {
    if (!task->create_id.empty()) task->create_sent_ns = std::max(task->create_sent_ns, now_ns);
  }
}

}  // namespace freeride::manager
