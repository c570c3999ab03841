// What each subcommand does. All print to session.out() and return an exit code or the error that main() prints.
#pragma once

#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"
#include "load_options.hpp"
#include "session.hpp"

namespace freeride::ctl {

struct LoadArguments {
  std::string plugin;  ///< a path when it has a "/", else a name in a drop folder or of a shipped plugin
  std::string name, job, memory;
  std::string interface;
  std::string python;   ///< the interpreter whose packages it uses; empty: a .py plugin has the system's
  std::string replace;  ///< the task to move to this plugin; empty: make a task
  int32_t stage = -1, replica = -1, priority = 0;
  std::vector<std::string> params;
  uint64_t steps = 0;
  bool when_idle = false, any_job = false, paused = false, network = false, no_profile = false, dry_run = false;
  LoadOptions options;
  std::vector<std::string> sweep;  ///< key=value,value: a task for each combination
  uint32_t parallel = 0;           ///< of them at most so many at once; 0: all
  bool yes = false;                ///< a task may be moved to a plugin of another name
  std::string account;             ///< empty: $SLURM_JOB_ACCOUNT, else the user
};

/// The command that `arguments` ask for; reads and checks the plugin's file when it is a path, into `attachment`.
/// Errors: kInvalidArgument, kVersion, kExhausted (the file is no plugin), kNotFound, kPermission (no such file, not
/// readable). Asks the manager once where files are named, since those of another host cannot be looked at.
Result<bus::Load> make_load(Session& session, const LoadArguments& arguments, std::string& attachment);

/// Whether a request for a plugin without a path is worth repeating, now with the one that FreeRide was installed with:
/// the manager knows of none in a drop folder, and there is one. Sets `arguments.plugin` to it.
bool use_shipped_plugin(const Error& error, LoadArguments& arguments);

Result<int> run_status(Session& session);
Result<int> run_plugins(Session& session);
Result<int> run_load(Session& session, LoadArguments arguments);
Result<int> run_stop(Session& session, const std::vector<std::string>& tasks);
Result<int> run_pause(Session& session, const std::vector<std::string>& tasks);
Result<int> run_resume(Session& session, const std::vector<std::string>& tasks);

/// The names given, or those of the tasks that have the labels; `live`: of these only. Errors: as the manager's;
/// kNotFound (none has these labels).
Result<std::vector<std::string>> meant_tasks(Session& session, const std::vector<std::string>& names,
                                             const std::vector<std::string>& labels, bool live);

struct TasksArguments {
  bool all = false;
  std::vector<std::string> labels;  ///< only those that have all of these
  std::string since;                ///< a span; empty: none
};
Result<int> run_tasks(Session& session, const TasksArguments& arguments);
Result<int> run_remove(Session& session, const std::vector<std::string>& tasks);
/// Returns when all have ended: 0 where each has finished or was stopped, else 1. `for_s` > 0: at the latest then, with
/// 1, too.
Result<int> run_wait(Session& session, const std::vector<std::string>& tasks, double for_s);
Result<int> run_task(Session& session, const std::string& task);
Result<int> run_workers(Session& session);
/// Lists GPU faults; `lift`: "plugin=HASH", "user=NAME" or "job=NAME", who may go on devices again.
Result<int> run_faults(Session& session, const std::string& lift);
Result<int> run_report(Session& session, const std::string& job);
/// What side tasks have had since that long ago ("30d"), by "user", "account", "job" or "task".
Result<int> run_usage(Session& session, const std::string& since, const std::string& by);

}  // namespace freeride::ctl
