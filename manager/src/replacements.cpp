#include "replacements.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "create_order.hpp"
#include "freeride/base/about.hpp"
#include "text.hpp"
#include "verdicts.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMostIncarnations = 8;
constexpr size_t kMostWaiting = 64;  // clients that wait for one replacement

Error failure_of(const std::string& task, const bus::Replacement& replacement) {
  const Code code = replacement.code.empty() ? Code::kRejected : code_from_string(replacement.code);
  return {code, "task " + task + " was not replaced: " + replacement.reason, {}};
}

// The load of the task as `asked` wants it: what is not asked for stays.
bus::Load merged(const bus::Load& present, const bus::Load& asked) {
  bus::Load load = present;
  load.plugin = asked.plugin;
  load.sha256 = asked.sha256;
  if (!asked.params.empty()) load.params = asked.params;
  if (asked.memory_bytes != 0) load.memory_bytes = asked.memory_bytes;
  if (asked.steps != 0) load.steps = asked.steps;
  if (asked.priority != 0) load.priority = asked.priority;
  if (!asked.user.empty()) load.user = asked.user;  // it is charged to the same account as before
  if (!asked.env.empty()) load.env = asked.env;
  if (!asked.working_dir.empty()) load.working_dir = asked.working_dir;
  if (!asked.files.empty()) {
    load.files = asked.files;
    load.uid = asked.uid;
    load.uid_host = asked.uid_host;
  }
  return load;
}

}  // namespace

void Replacements::replace(Ticket ticket, const std::string& request_id, const std::string& name,
                           const bus::Load& asked) {
  const auto refuse = [&](const Error& error) { the_.outside.answer(ticket, error); };
  if (!is_plain(request_id, 256)) return refuse({Code::kInvalidArgument, "the request has no id", {}});
  auto repeated = the_.tasks.of_request(request_id);
  if (!repeated) return refuse(repeated.error());
  if (*repeated) return repeat(ticket, request_id, **repeated);
  auto found = the_.tasks.to_order(name, "replace");
  if (!found) return refuse(found.error());
  Task& task = **found;
  if (!asked.program.empty() || !task.load().program.empty())
    return refuse({Code::kInvalidArgument, "cannot replace " + name + ": programs are not moved to other contents",
                   "freeride-ctl stop " + name + ", then submit or load the other"});
  if (task.row.stopping)
    return refuse({Code::kInvalidArgument, "cannot replace " + name + ": it is being stopped", {}});
  if (task.replacing()) {
    return refuse({Code::kAlreadyExists, "task " + name + " is being replaced already", "try again when that is done"});
  }
  for (const auto& [given, what] : {std::pair{!asked.name.empty(), "name"}, std::pair{asked.stage >= 0, "stage"},
                                    std::pair{asked.replica >= 0, "replica"}, std::pair{!asked.job.empty(), "job"}}) {
    if (given) return refuse({Code::kInvalidArgument, std::string("a replaced task keeps its ") + what, {}});
  }
  bus::Load load = merged(task.load(), asked);
  // Whose code runs with these files has to be whose files they are. Root is everybody on its own host, and nobody
  // elsewhere.
  const bool is_owner = asked.uid_host == load.uid_host && (asked.uid == load.uid || asked.uid == 0);
  if (asked.files.empty() && !load.files.empty() && !is_owner) {
    return refuse({Code::kPermission,
                   "cannot replace " + name + ": it uses files with the rights of user " + std::to_string(load.uid),
                   "that user may, or name files of your own (--read, --write)"});
  }
  if (auto checked = the_.check.check(load); !checked) return refuse(checked.error());
  auto sha256 = the_.contents.resolve(load);
  if (!sha256) return refuse(sha256.error());
  load.sha256 = *sha256;
  auto possible = the_.check.check_faults(load.sha256, load.user);
  if (possible) possible = check_room(task, load);
  if (!possible) {
    the_.contents.release(*sha256);
    return refuse(possible.error());
  }

  const TaskRow before = task.row;
  bus::Replacement& replacement = task.row.info.replacement = {};
  replacement.revision = std::max(before.info.revision, before.info.replacement.revision) + 1;
  replacement.state = "pending";
  replacement.request_id = request_id;
  replacement.load = std::move(load);
  if (auto added = the_.tasks.save_with(task, request_id); !added) {
    task.row = before;
    the_.contents.release(*sha256);
    return refuse(added.error());
  }
  spdlog::info("{}: to be replaced by {} ({})", about_task(name), replacement.load.plugin, sha256->substr(0, 12));
  task.replace_waiting.push_back(ticket);
  if (!task.on_worker()) return done(task, "it had not begun", task.state().counters.steps);
  send(task);
}

void Replacements::repeat(Ticket ticket, const std::string& request_id, int64_t id) {
  Task* task = the_.tasks.by_id(id);
  if (task == nullptr) {
    return the_.outside.answer(ticket,
                               Error{Code::kNotFound, "the task of this request has ended and was forgotten", {}});
  }
  const bus::Replacement& replacement = task->row.info.replacement;
  if (replacement.request_id != request_id || replacement.state == "done") return the_.tasks.answer(ticket, *task);
  if (replacement.state == "failed") return the_.outside.answer(ticket, failure_of(task->name(), replacement));
  if (task->replace_waiting.size() >= kMostWaiting) {
    return the_.outside.answer(ticket, Error{Code::kExhausted, "too many wait for this already", {}});
  }
  task->replace_waiting.push_back(ticket);
}

// Both are there for a while, though only one of them on the device; what is counted is the larger one.
Status Replacements::check_room(const Task& task, const bus::Load& load) const {
  const int64_t more = load.memory_bytes > 0 ? load.memory_bytes - task.row.reserved_bytes : 0;
  if (!task.on_worker() || more <= 0) return {};
  for (const auto& view : the_.capacity.device(task.state().worker)) {
    if (view.free_bytes >= more) continue;
    return Error{Code::kRejected,
                 "task " + task.name() + " with " + std::to_string(load.memory_bytes >> 20) + " MiB does not fit on " +
                     view.worker + ", which has " + std::to_string(std::max<int64_t>(0, view.free_bytes) >> 20) +
                     " MiB more",
                 "stop the task and load the plugin again"};
  }
  return {};
}

void Replacements::send(Task& task) {
  if (!task.replacing() || task.phase != Task::Phase::kPlaced || task.row.stopping) return;
  const Worker* worker = the_.workers.find_up(task.state().worker);
  if (worker == nullptr) return;  // when it is back
  // Nothing to replace before it has been seen there.
  if (worker->tasks.count(task.name()) == 0) return;
  const bus::Replacement& replacement = task.row.info.replacement;
  Task next;
  next.row = task.row;
  next.row.info.load = replacement.load;
  next.state().plugin = replacement.load.plugin;
  next.state().sha256 = replacement.load.sha256;
  bus::ReplaceTask order;
  order.create = create_order(next, *worker, the_.capacity, the_.profiles);
  order.create.revision = replacement.revision;
  order.create.state_worker.clear();  // it goes on from what the old content saves
  task.replace_sent_ns = the_.clock.now_ns();
  (void)the_.orders.send(*worker, order, {Pending::Kind::kReplace, task.row.id});  // sent again with a later report
}

void Replacements::reply(const Pending& pending, const std::optional<Error>& error) {
  Task* task = the_.tasks.by_id(pending.task);
  if (!error || task == nullptr) return;
  // "Unavailable" is for a manager that does not answer.
  const bool away = error->code == Code::kUnavailable || error->code == Code::kTimeout;
  fail(*task, error->text(), away ? Code::kInternal : error->code);
}

void Replacements::take_report(Task& task, const bus::TaskReport& report) {
  bus::Replacement& replacement = task.row.info.replacement;
  const auto& seen = report.replacement;
  if (replacement.revision == 0 || seen.revision != replacement.revision || replacement.state == "done") {
    if (task.replacing() && the_.clock.now_ns() - task.replace_sent_ns >= kOrderPatience) send(task);
    return;
  }
  // Also one that was given up here while its worker was away: what runs there is what counts.
  if (seen.state == "done") return done(task, bounded(seen.reason, kMaxReason), task.row.earlier.steps + seen.steps);
  if (seen.state == "failed") fail(task, bounded(seen.reason, kMaxReason), Code::kRejected);
}

// The task is its new content from here on.
void Replacements::done(Task& task, const std::string& how, uint64_t steps) {
  bus::TaskInfo& info = task.row.info;
  bus::Incarnation old;
  old.revision = info.revision;
  old.plugin = info.load.plugin;
  old.sha256 = info.load.sha256;
  old.steps = steps;
  old.ended_unix_ms = the_.tasks.unix_ms();
  old.verdict = verdict_of(policy::VerdictKind::kReplaced, policy::Cause::kReplacement,
                           "by " + info.replacement.load.plugin + "; " + how);
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
  task.profile_here = false;
  if (task.on_worker()) task.row.reserved_bytes = std::max(task.row.reserved_bytes, info.load.memory_bytes);
  the_.due.changed.insert(task.state().worker);
  spdlog::info("{}: replaced by {} ({}): {}", about_task(task.name()), info.load.plugin, info.load.sha256.substr(0, 12),
               how);
  the_.tasks.save(task);
  the_.tasks.publish(task);
  the_.contents.release(old.sha256);
  for (const Ticket ticket : std::exchange(task.replace_waiting, {})) the_.tasks.answer(ticket, task);
  if (task.phase == Task::Phase::kQueued) the_.due.raised = true;
}

// Its load stays known: a worker that was away may yet have done it.
void Replacements::fail(Task& task, const std::string& why, Code code) {
  if (!task.replacing()) return;
  bus::Replacement& replacement = task.row.info.replacement;
  replacement.state = "failed";
  replacement.reason = why;
  replacement.code = to_string(code);
  spdlog::warn("{}: not replaced by {}: {}", about_task(task.name()), replacement.load.plugin, why);
  the_.tasks.save(task);
  the_.tasks.publish(task);
  the_.contents.release(replacement.load.sha256);
  for (const Ticket ticket : std::exchange(task.replace_waiting, {}))
    the_.outside.answer(ticket, failure_of(task.name(), replacement));
}

}  // namespace freeride::manager
