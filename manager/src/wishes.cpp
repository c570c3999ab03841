#include "wishes.hpp"

#include <algorithm>

#include "text.hpp"

namespace freeride::manager {

namespace {

// Worker::file_users is "all", or ids of the one host that it is on.
bool is_of_host(const Worker& worker, const std::string& host) {
  return !host.empty() && (" " + worker.file_users + " ").find(" " + host + " ") != std::string::npos;
}

}  // namespace

void give_files(const bus::Load& load, const Worker& worker, bus::CreateTask& order) {
  order.files = load.files;
  order.working_dir = load.working_dir;
  order.env = load.env;
  order.uid = load.uid;
  order.uid_host = is_of_host(worker, load.uid_host) ? worker.name.substr(0, worker.name.rfind(':')) : load.uid_host;
}

bool can_use_files(const bus::Load& load, const Worker& worker) {
  if (load.files.empty() && load.env.empty() && load.working_dir.empty()) return true;
  if (worker.file_users.empty()) return false;  // an earlier version, which would run it without
  if (load.files.empty() || worker.file_users == "all") return true;
  return is_of_host(worker, load.uid_host);
}

bool can_run_program(const bus::Load& load, const Worker& worker) {
  return load.program.empty() || worker.programs;
}

std::string wanted_worker(const bus::Load& load, bool with_programs) {
  if (!load.program.empty() && !with_programs)
    return "a worker that runs programs (of this version; on a GPU with the shim)";
  if (load.files.empty()) return "a worker of a version that sets a task's environment";
  return "a worker on " + (load.uid_host.empty() ? "its submitter's host" : load.uid_host) +
         ", whose user its files are used under (or one with --users-of-all-hosts)";
}

Result<std::string> parse_after(const std::string& text) {
  constexpr std::string_view kRule = "afterok:";
  const std::string task = text.rfind(kRule, 0) == 0 ? text.substr(kRule.size()) : "";
  if (is_task_name(task)) return task;
  return Error{Code::kInvalidArgument, in_quotes(text) + " is no dependency", "write afterok:TASK"};
}

namespace {
std::string group_of(const bus::Load& load) {
  return load.user + '\n' + load.group;
}
}  // namespace

void count(const Task& placed, AtWork& at_work) {
  if (!placed.load().group.empty()) ++at_work[group_of(placed.load())];
}

AtWork at_work(const TaskBook& tasks) {
  AtWork found;
  for (const auto& [name, task] : tasks.live()) {
    if (task->on_worker()) count(*task, found);
  }
  return found;
}

std::optional<Hindrance> hindrance_of(Task& task, const TaskBook& tasks, const AtWork& at_work) {
  auto& waits_for = task.row.info.waits_for;
  const Task* awaited = nullptr;
  for (auto it = waits_for.begin(); it != waits_for.end();) {
    const Task* other = tasks.of_instance(*it);
    if (other == nullptr) return Hindrance{policy::Why::kAfter, "a task that it waits for was forgotten", true};
    if (other->live()) {
      if (awaited == nullptr) awaited = other;
      ++it;
    } else if (other->state().verdict.kind == "finished") {
      it = waits_for.erase(it);
      task.unsaved = true;
    } else {
      return Hindrance{
          policy::Why::kAfter,
          "task " + other->name() + ", which it was to follow, has not finished: " + other->state().verdict.kind, true};
    }
  }
  if (awaited != nullptr) return Hindrance{policy::Why::kAfter, awaited->name(), false};
  const auto& load = task.load();
  if (load.group.empty() || load.parallel == 0) return std::nullopt;
  const auto there = at_work.find(group_of(load));
  if (there == at_work.end() || there->second < load.parallel) return std::nullopt;
  return Hindrance{policy::Why::kParallel, std::to_string(load.parallel) + " of " + load.group, false};
}

bool is_over_time(const Task& task, int64_t now_ns) {
  const int64_t limit_s = task.load().time_limit_s;
  return limit_s > 0 && task.row.info.placed_unix_ms > 0 && (now_ns - task.begun_ns) / kNsPerSec >= limit_s;
}

}  // namespace freeride::manager
