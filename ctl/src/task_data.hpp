// What a task has printed and written: logs, cp.
#pragma once

#include <string>

#include "session.hpp"

namespace freeride::ctl {

struct LogsArguments {
  std::string task;
  bool follow = false, previous = false;
};
/// Prints the log from `offset` on (-1: its last lines). Returns whether the task has ended; false: the user
/// interrupts, or all that there is has been printed. Errors: the manager's own, kNotFound (it has never had a log).
Result<bool> print_log(Session& session, const LogsArguments& arguments, int64_t offset);
/// Prints the log; with `follow` until the task has ended, or the user interrupts.
Result<int> run_logs(Session& session, const LogsArguments& arguments);

struct CopyArguments {
  std::string from;  ///< TASK:PATH
  std::string to;    ///< a folder
};
/// Copies a file or folder of the task's scratch folder, or of a place that it was given with --write or --read, into a
/// folder. The latter are read here, with this user's own rights; the former come from the worker. Overwrites files of
/// the same name, each at once or not at all.
Result<int> run_copy(Session& session, const CopyArguments& arguments);

}  // namespace freeride::ctl
