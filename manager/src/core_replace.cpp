// Moving a live task to another plugin. What is to happen is on disk before the worker hears of it; the worker moves
// the task and reports how that went; what it reports is on disk before the user hears of it.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "core.hpp"
#include "freeride/base/plugin_file.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMostIncarnations = 8;
constexpr size_t kMostWaiting = 64;  // clients that wait for one replacement
constexpr int64_t kOrderPatience = 2 * kNsPerSec;

Error failure_of(const std::string& task, const bus::Replacement& replacement) {
  const Code code = replacement.code.empty() ? Code::kRejected : code_from_string(replacement.code);
  return {code, "task " + task + " was not replaced: " + replacement.reason, {}};
}

}  // namespace

std::string Core::instance_of(const Task& task) {
  return std::to_string(task.row.id) + "-" + std::to_string(task.row.info.submitted_unix_ms);
}

void Core::replace(Ticket ticket, const std::string& request_id, const std::string& name, const bus::Load& asked,
                   const std::string& attachment) {
  const auto refuse = [&](const Error& error) { outside_.answer(ticket, error, {}); };
  if (!is_plain(request_id, 256)) return refuse({Code::kInvalidArgument, "the request has no id", {}});
  auto repeated = store_->task_of_request(request_id);
  if (!repeated) return refuse(repeated.error());
  if (*repeated) return repeat_replace(ticket, request_id, **repeated);
  auto found = task_to_order(name, "replace");
  if (!found) return refuse(found.error());
  Task& task = **found;
  if (task.row.stopping)
    return refuse({Code::kInvalidArgument, "cannot replace " + name + ": it is being stopped", {}});
  if (task.replacing()) {
    return refuse({Code::kAlreadyExists, "task " + name + " is being replaced already", "try again when that is done"});
  }
  for (const auto& [given, what] : {std::pair{!asked.name.empty(), "name"}, std::pair{asked.stage >= 0, "stage"},
                                    std::pair{asked.replica >= 0, "replica"}, std::pair{!asked.job.empty(), "job"}}) {
    if (given) return refuse({Code::kInvalidArgument, std::string("a replaced task keeps its ") + what, {}});
  }
  bus::Load load = task.row.info.load;
  load.plugin = asked.plugin;
  load.sha256 = asked.sha256;
  if (!asked.params.empty()) load.params = asked.params;
  if (asked.memory_bytes != 0) load.memory_bytes = asked.memory_bytes;
  if (asked.steps != 0) load.steps = asked.steps;
  if (asked.priority != 0) load.priority = asked.priority;
  if (!asked.user.empty()) load.user = asked.user;
  if (auto checked = check_load(load); !checked) return refuse(checked.error());
  auto sha256 = resolve_plugin(load, attachment);
  if (!sha256) return refuse(sha256.error());
  load.sha256 = *sha256;
  if (auto room = check_room_for(task, load); !room) {
    release_content(*sha256);
    return refuse(room.error());
  }

  const TaskRow before = task.row;
  bus::Replacement& replacement = task.row.info.replacement = {};
  replacement.revision = std::max(before.info.revision, before.info.replacement.revision) + 1;
  replacement.state = "pending";
  replacement.request_id = request_id;
  replacement.load = std::move(load);
  if (auto added = store_->add_task(task.row, request_id, unix_ms_()); !added) {
    task.row = before;
    release_content(*sha256);
    disk_trouble(added.error());
    return refuse(added.error());
  }
  spdlog::info("task {}: to be replaced by {} ({})", name, replacement.load.plugin, sha256->substr(0, 12));
  task.replace_waiting.push_back(ticket);
  if (!task.on_worker()) return replaced(task, "it had not begun", task.state().counters.steps);
  send_replace(task);
  next_tick_ns_ = std::min(next_tick_ns_, clock_.now_ns() + kNsPerSec);
}

void Core::repeat_replace(Ticket ticket, const std::string& request_id, int64_t id) {
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) {
    return outside_.answer(ticket, Error{Code::kNotFound, "the task of this request has ended and was forgotten", {}},
                           {});
  }
  Task& task = found->second;
  const bus::Replacement& replacement = task.row.info.replacement;
  if (replacement.request_id != request_id || replacement.state == "done") return answer_task(ticket, task);
  if (replacement.state == "failed") return outside_.answer(ticket, failure_of(task.name(), replacement), {});
  if (task.replace_waiting.size() >= kMostWaiting) {
    return outside_.answer(ticket, Error{Code::kExhausted, "too many wait for this already", {}}, {});
  }
  task.replace_waiting.push_back(ticket);
}

// Both are there for a while, though only one of them on the device; what is counted is the larger one.
Status Core::check_room_for(const Task& task, const bus::Load& load) const {
  const int64_t more = load.memory_bytes > 0 ? load.memory_bytes - task.row.reserved_bytes : 0;
  if (!task.on_worker() || more <= 0) return {};
  for (const auto& view : device_views()) {
    if (view.worker != task.state().worker || view.free_bytes >= more) continue;
    return Error{Code::kRejected,
                 "task " + task.name() + " with " + std::to_string(load.memory_bytes >> 20) + " MiB does not fit on " +
                     view.worker + ", which has " + std::to_string(std::max<int64_t>(0, view.free_bytes) >> 20) +
                     " MiB more",
                 "stop the task and load the plugin anew"};
  }
  return {};
}

void Core::send_replace(Task& task) {
  if (!task.replacing() || task.phase != Task::Phase::kPlaced || task.row.stopping) return;
  Worker* worker = worker_of(task.state().worker);
  if (worker == nullptr || !worker->up()) return;  // when it is back
  // Nothing to replace before it has been seen there.
  if (worker->tasks.count(task.name()) == 0) return;
  const bus::Replacement& replacement = task.row.info.replacement;
  Task next;
  next.row = task.row;
  next.row.info.load = replacement.load;
  next.state().plugin = replacement.load.plugin;
  next.state().sha256 = replacement.load.sha256;
  bus::ReplaceTask order;
  order.create = create_order(next, *worker);
  order.create.revision = replacement.revision;
  task.replace_sent_ns = clock_.now_ns();
  if (auto id = outside_.send(worker->peer, order)) {
    pending_[*id] = {Pending::Kind::kReplace, worker->peer, worker->name, task.row.id, {}, 0, task.replace_sent_ns};
  }
}

void Core::replace_reply(const Pending& pending, const std::optional<Error>& error) {
  const auto found = tasks_.find(pending.task);
  if (!error || found == tasks_.end() || !found->second.replacing()) return;
  // "Unavailable" is for a manager that does not answer.
  const bool away = error->code == Code::kUnavailable || error->code == Code::kTimeout;
  replace_failed(found->second, error->text(), away ? Code::kInternal : error->code);
}

// From a report of the task's worker.
void Core::update_replacement(Task& task, const bus::TaskReport& report) {
  bus::Replacement& replacement = task.row.info.replacement;
  const auto& seen = report.replacement;
  if (replacement.revision == 0 || seen.revision != replacement.revision || replacement.state == "done") {
    if (task.replacing() && clock_.now_ns() - task.replace_sent_ns >= kOrderPatience) send_replace(task);
    return;
  }
  // Also one that was given up here while its worker was away: what runs there is what counts.
  if (seen.state == "done")
    return replaced(task, bounded(seen.reason, kMaxReason), task.row.earlier.steps + seen.steps);
  if (seen.state == "failed" && task.replacing())
    replace_failed(task, bounded(seen.reason, kMaxReason), Code::kRejected);
}

// The task is its new content from here on.
void Core::replaced(Task& task, const std::string& how, uint64_t steps) {
  bus::TaskInfo& info = task.row.info;
  bus::Incarnation old;
  old.revision = info.revision;
  old.plugin = info.load.plugin;
  old.sha256 = info.load.sha256;
  old.steps = steps;
  old.ended_unix_ms = unix_ms_();
  old.verdict.kind = "replaced";
  old.verdict.reason = "by " + info.replacement.load.plugin + "; " + how;
  info.incarnations.push_back(old);
  if (info.incarnations.size() > kMostIncarnations) info.incarnations.erase(info.incarnations.begin());
  info.revision = info.replacement.revision;
  info.load = std::exchange(info.replacement.load, {});
  info.replacement.state = "done";
  info.replacement.reason = how;
  info.replacement.code.clear();
  task.state().plugin = info.load.plugin;
  task.state().sha256 = info.load.sha256;
  task.profile_keys.clear();
  task.profile_failures = 0;
  if (task.on_worker()) task.row.reserved_bytes = std::max(task.row.reserved_bytes, info.load.memory_bytes);
  spdlog::info("task {}: replaced by {} ({}): {}", task.name(), info.load.plugin, info.load.sha256.substr(0, 12), how);
  save(task);
  outside_.publish(task.state());
  release_content(old.sha256);
  for (const Ticket ticket : std::exchange(task.replace_waiting, {})) answer_task(ticket, task);
  if (task.phase == Task::Phase::kQueued) {
    schedule_due_ = true;
    schedule();
  }
}

// The old content goes on. Its load stays known: a worker that was away may yet have done it.
void Core::replace_failed(Task& task, const std::string& why, Code code) {
  if (!task.replacing()) return;
  bus::Replacement& replacement = task.row.info.replacement;
  replacement.state = "failed";
  replacement.reason = why;
  replacement.code = to_string(code);
  spdlog::warn("task {}: not replaced by {}: {}", task.name(), replacement.load.plugin, why);
  save(task);
  outside_.publish(task.state());
  release_content(replacement.load.sha256);
  for (const Ticket ticket : std::exchange(task.replace_waiting, {}))
    outside_.answer(ticket, failure_of(task.name(), replacement), {});
}

// ---- contents that nobody needs any more

bool Core::content_needed(const std::string& sha256) const {
  for (const auto& [name, id] : live_) {
    const Task& task = tasks_.at(id);
    if (task.state().sha256 == sha256) return true;
    if (task.replacing() && task.row.info.replacement.load.sha256 == sha256) return true;
  }
  if (std::any_of(profile_runs_.begin(), profile_runs_.end(), [&](const auto& r) { return r.second.sha256 == sha256; }))
    return true;
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const auto& plugins = entry.second.plugins;
    return std::any_of(plugins.begin(), plugins.end(), [&](const auto& p) { return p.second.sha256 == sha256; });
  });
}

// Looked at a little later: a worker may be about to say that its drop folder has it.
void Core::release_content(const std::string& sha256) {
  if (!sha256.empty()) released_[sha256] = clock_.now_ns() + kContentPatience;
}

void Core::drop_contents(int64_t now) {
  for (auto it = released_.begin(); it != released_.end();) {
    if (it->second > now) {
      ++it;
      continue;
    }
    if (!content_needed(it->first)) content_.remove(it->first);
    it = released_.erase(it);
  }
}

}  // namespace freeride::manager
