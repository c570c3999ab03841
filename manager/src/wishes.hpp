// What a task's submitter asks of the manager beyond a device: files, an order among tasks, limits of time and number.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Copies what of `load` concerns the host's files, the environment and the working folder, for this worker: one that
/// is on this manager's host, by the kernel's word, may call the host otherwise (a container).
void give_files(const bus::Load& load, const Worker& worker, bus::CreateTask& order);

/// Whether a worker could use the task's files, under whoever its submitter is. Its own word is final; this only keeps
/// tasks from being sent where they would be refused.
bool can_use_files(const bus::Load& load, const Worker& worker);
/// Whether a worker runs what the task is: every worker runs plugins, and not every one programs.
bool can_run_program(const bus::Load& load, const Worker& worker);
/// What a task waits for where no worker can, as WhyDetail::what. `with_programs`: the one that was left out runs them.
std::string wanted_worker(const bus::Load& load, bool with_programs);

/// "afterok:TASK" → the task's name. Errors: kInvalidArgument.
Result<std::string> parse_after(const std::string& text);

/// What a queued task waits for among the others.
struct Hindrance {
  policy::Why why = policy::Why::kNone;
  std::string what;
  bool never = false;  ///< it can never begin; `what` is the sentence
};
/// How many tasks of each group are on workers.
using AtWork = std::map<std::string, uint32_t>;
AtWork at_work(const TaskBook& tasks);
void count(const Task& placed, AtWork& at_work);
/// `task.row.info.waits_for` loses those that have finished.
std::optional<Hindrance> hindrance_of(Task& task, const TaskBook& tasks, const AtWork& at_work);

/// Whether its time is over.
bool is_over_time(const Task& task, int64_t now_ns);

}  // namespace freeride::manager
