#include "verbs.hpp"

#include <pwd.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "exit_code.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/python_env.hpp"
#include "freeride/base/sha256.hpp"
#include "jobs.hpp"
#include "json.hpp"
#include "parse.hpp"
#include "render.hpp"
#include "runner.hpp"

namespace freeride::ctl {
namespace {

// All that a worker allows its steps of a replacement, and some more.
constexpr std::chrono::milliseconds kReplacePatience{400'000};

std::string user_name() {
  if (const passwd* entry = getpwuid(getuid()); entry != nullptr && entry->pw_name != nullptr) return entry->pw_name;
  return std::to_string(getuid());
}

Result<std::string> read_plugin(const std::string& path) {
  auto bytes = read_file(path, kMaxPluginBytes);
  if (bytes) return bytes;
  Error error = bytes.error();
  if (error.code == Code::kNotFound) error.hint = "a plugin in the drop folder is named without a path";
  if (error.code == Code::kInvalidArgument) error.hint = "name the plugin's .so file";
  return error;
}

// What came, as JSON or as `render` has it.
template <class Reply, class Render>
Result<int> shown(Session& session, const Result<Reply>& reply, Render render) {
  if (!reply) return reply.error();
  session.out() << (session.json() ? dump(to_json(*reply), 2) + "\n" : render(*reply));
  return kExitOk;
}

template <class Reply, class Command, class Render>
Result<int> show(Session& session, const Command& command, Render render) {
  return shown(session, session.ask<Reply>(command), render);
}

// Every task is tried, so that one that is gone does not keep the others; the first error decides the exit code.
template <class Command>
Result<int> change(Session& session, const std::vector<std::string>& tasks) {
  std::optional<Error> first;
  auto replies = nlohmann::json::array();
  for (const std::string& task : tasks) {
    Command command;
    command.task = task;
    const auto reply = session.ask<bus::TaskReply>(command);
    if (!reply) {
      if (first) {
        std::cerr << "freeride-ctl: " << reply.error().text() << "\n";
      } else {
        first = reply.error();
      }
      if (reply.error().code == Code::kTimeout || !session.connected()) break;
    } else if (session.json()) {
      replies.push_back(to_json(reply->task));
    } else {
      session.out() << render_task_line(reply->task.state);
    }
  }
  if (session.json()) session.out() << dump({{"tasks", replies}}, 2) << "\n";
  if (first) return *first;
  return kExitOk;
}

}  // namespace

Result<bus::Load> make_load(const LoadArguments& arguments, std::string& attachment) {
  bus::Load load;
  load.plugin = arguments.plugin;
  if (arguments.plugin.find('/') != std::string::npos) {
    auto bytes = read_plugin(arguments.plugin);
    if (!bytes) return bytes.error();
    if (auto fine = check_plugin_file(*bytes, arguments.plugin); !fine) return fine.error();
    load.plugin = std::filesystem::path(arguments.plugin).filename().string();
    load.sha256 = sha256_hex(*bytes);
    attachment = std::move(*bytes);
  }
  if (auto s = take(load.params, parse_params(arguments.params)); !s) return s.error();
  if (!arguments.interface.empty()) load.params["interface"] = arguments.interface;
  if (!arguments.python.empty()) {
    auto python = parse_python(arguments.python);
    if (!python) return python.error();
    load.params[kPythonParam] = *python;
  }
  if (!arguments.memory.empty()) {
    const auto size = parse_size(arguments.memory);
    if (!size) return Error{size.error().code, "--memory: " + size.error().message, size.error().hint};
    load.memory_bytes = *size;
  }
  load.name = arguments.name;
  load.job = job_argument(arguments.job);
  load.stage = arguments.stage;
  load.replica = arguments.replica;
  load.priority = arguments.priority;
  load.steps = arguments.steps;
  load.when_idle = arguments.when_idle;
  load.network = arguments.network;
  load.start_paused = arguments.paused;
  load.user = user_name();
  return load;
}

namespace {

Result<int> load_once(Session& session, const LoadArguments& arguments) {
  std::string attachment;
  const auto load = make_load(arguments, attachment);
  if (!load) return load.error();
  if (!arguments.replace.empty()) {
    // The answer comes when the task has moved. A manager that is not there is told from one that takes its time.
    if (auto there = session.ask<bus::StatusReply>(bus::GetStatus{}); !there) return there.error();
    const auto reply = session.ask<bus::TaskReply>(bus::ReplacePlugin{arguments.replace, *load}, std::move(attachment),
                                                   kReplacePatience);
    return shown(session, reply,
                 [](const auto& r) { return render_task_line(r.task.state) + render_replacement(r.task); });
  }
  return shown(session, session.ask<bus::TaskReply>(*load, std::move(attachment)),
               [](const auto& r) { return render_task_line(r.task.state); });
}

}  // namespace

bool use_shipped_plugin(const Error& error, LoadArguments& arguments) {
  if (error.code != Code::kNotFound || arguments.plugin.find('/') != std::string::npos) return false;
  const auto shipped = shipped_plugin(arguments.plugin);
  if (shipped.empty()) return false;
  arguments.plugin = shipped.string();
  return true;
}

Result<int> run_load(Session& session, LoadArguments arguments) {
  auto done = load_once(session, arguments);
  if (!done && use_shipped_plugin(done.error(), arguments)) done = load_once(session, arguments);
  return done;
}

Result<int> run_status(Session& session) {
  return show<bus::StatusReply>(session, bus::GetStatus{}, render_status);
}
Result<int> run_plugins(Session& session) {
  return show<bus::PluginsReply>(session, bus::ListPlugins{}, render_plugins);
}
Result<int> run_workers(Session& session) {
  return show<bus::WorkersReply>(session, bus::ListWorkers{}, render_workers);
}
Result<int> run_tasks(Session& session) {
  return show<bus::TasksReply>(session, bus::ListTasks{},
                               [](const bus::TasksReply& reply) { return render_tasks(reply.tasks); });
}
Result<int> run_task(Session& session, const std::string& task) {
  return show<bus::TaskReply>(session, bus::ShowTask{task},
                              [](const bus::TaskReply& reply) { return render_task(reply.task); });
}
Result<int> run_faults(Session& session, const std::string& lift) {
  if (lift.empty()) return show<bus::FaultsReply>(session, bus::ListFaults{}, render_faults);
  const size_t equals = lift.find('=');
  if (equals == lift.npos) {
    return Error{Code::kInvalidArgument, "'" + lift + "' does not say whose block is lifted",
                 "--lift plugin=HASH, user=NAME or job=NAME, as freeride-ctl faults lists them"};
  }
  const std::string scope = lift.substr(0, equals), name = lift.substr(equals + 1);
  return show<bus::FaultsReply>(session, bus::LiftFaults{scope, scope == "job" ? job_argument(name) : name},
                                render_faults);
}
Result<int> run_report(Session& session, const std::string& job) {
  return show<bus::ReportReply>(session, bus::GetReport{job_argument(job)}, render_report);
}
Result<int> run_stop(Session& session, const std::vector<std::string>& tasks) {
  return change<bus::StopTask>(session, tasks);
}
Result<int> run_pause(Session& session, const std::vector<std::string>& tasks) {
  return change<bus::PauseTask>(session, tasks);
}
Result<int> run_resume(Session& session, const std::vector<std::string>& tasks) {
  return change<bus::ResumeTask>(session, tasks);
}

}  // namespace freeride::ctl
