#include "verbs.hpp"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>

#include "error_line.hpp"
#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/plugin_file.hpp"
#include "freeride/base/python_env.hpp"
#include "freeride/base/sha256.hpp"
#include "freeride/base/waiting.hpp"
#include "freeride/policy/permission.hpp"
#include "interrupt.hpp"
#include "jobs.hpp"
#include "json.hpp"
#include "moment.hpp"
#include "parse.hpp"
#include "python_package.hpp"
#include "render.hpp"
#include "runner.hpp"
#include "suggest.hpp"
#include "sweep.hpp"

namespace freeride::ctl {
namespace {

// All that a worker allows its steps of a replacement, and some more.
constexpr std::chrono::milliseconds kReplacePatience{400'000};
constexpr std::chrono::seconds kPiecePatience{30};
constexpr std::chrono::milliseconds kPieceAgain{500};
constexpr size_t kLeastPiece = 64u << 10;

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

// "HOST:NAME" of a drop folder of that host's.
struct OnHost {
  std::string host, name;
};
std::optional<OnHost> on_host(const std::string& plugin) {
  const size_t colon = plugin.find(':');
  if (colon == std::string::npos || plugin.find('/') != std::string::npos) return std::nullopt;
  return OnHost{plugin.substr(0, colon), plugin.substr(colon + 1)};
}

// Why a host's drop folder does not have it: there is no such host, it is away, or it has no such file.
Error not_there(Session& session, const OnHost& from, const std::set<std::string>& others) {
  std::set<std::string> hosts;
  bool known = false, up = false;
  if (const auto workers = session.ask<bus::WorkersReply>(bus::ListWorkers{})) {
    for (const auto& one : workers->workers) {
      const std::string host(policy::host_of_worker(one.state.worker));
      hosts.insert(host);
      known = known || host == from.host;
      up = up || (host == from.host && one.state.state == "up");
    }
  }
  std::string named;
  for (const std::string& host : known ? others : hosts) named += (named.empty() ? "" : ", ") + host;
  if (!known)
    return {Code::kInvalidArgument, "there is no host '" + from.host + "'", named.empty() ? "" : "hosts: " + named};
  if (!up)
    return {Code::kUnavailable, "no worker of host " + from.host + " is up", "freeride-ctl workers shows its workers"};
  return {Code::kNotFound, "there is no plugin '" + from.name + "' in the drop folder of host " + from.host,
          named.empty() ? "freeride-ctl plugins lists those that have a name" : "hosts that have it: " + named};
}

// The SHA-256 of what it is there now. Nothing: a drop folder has a file of this whole name.
Result<std::optional<std::string>> content_on(Session& session, const OnHost& from, const std::string& whole) {
  const auto listed = session.ask<bus::PluginsReply>(bus::ListPlugins{});
  if (!listed) return listed.error();
  std::optional<std::string> sha256;
  std::set<std::string> hosts;
  std::string rejected;
  for (const auto& plugin : listed->plugins) {
    if (plugin.name == whole) return std::optional<std::string>();
    if (plugin.name != from.name) continue;
    const std::string host(policy::host_of_worker(plugin.worker));
    if (plugin.state == "rejected") {
      if (host == from.host) rejected = plugin.reason;
      continue;
    }
    hosts.insert(host);
    if (host != from.host) continue;
    if (sha256 && *sha256 != plugin.sha256)
      return Error{Code::kInvalidArgument, "workers of host " + from.host + " have several plugins " + from.name,
                   "wait until all of its drop folders are the same, or load it from a path"};
    sha256 = plugin.sha256;
  }
  if (sha256) return sha256;
  if (!rejected.empty())
    return Error{Code::kRejected, "plugin " + from.name + " of host " + from.host + " was rejected: " + rejected,
                 "correct the file there and drop it again"};
  return not_there(session, from, hosts);
}

// In pieces. One that does not come is asked for again, for kPiecePatience. Nothing: it is no name of that form.
Result<std::optional<std::string>> read_from_host(Session& session, const OnHost& from, const std::string& whole) {
  if (from.host.empty() || from.name.empty())
    return Error{Code::kInvalidArgument, "'" + whole + "' is not HOST:NAME", "as in gpu7-a1b2c3d4:image.so"};
  const auto sha256 = content_on(session, from, whole);
  if (!sha256) return sha256.error();
  if (!*sha256) return std::optional<std::string>();
  bus::ReadPlugin wish{from.host, **sha256, 0};
  std::string bytes;
  const auto stopped = [&](const Error& why) {
    return Error{why.code,
                 "host " + from.host + " has sent " + human_bytes(static_cast<int64_t>(bytes.size())) + " of plugin " +
                     from.name + " and nothing more: " + why.message,
                 "load it again"};
  };
  for (auto heard = std::chrono::steady_clock::now();;) {
    std::string piece;
    const auto reply = session.ask_attached<bus::FileReply>(wish, piece);
    if (interrupted()) return Error{Code::kUnavailable, "interrupted", ""};
    if (!reply) {
      const Code code = reply.error().code;
      if (const auto now = content_on(session, from, whole); now && *now && **now != wish.sha256)
        return Error{Code::kUnavailable, "plugin " + from.name + " of host " + from.host + " was replaced meanwhile",
                     "load it again"};
      // A manager that was just started does not know its workers yet.
      const bool may_pass = code == Code::kTimeout || code == Code::kUnavailable || code == Code::kNotFound;
      if (!may_pass || std::chrono::steady_clock::now() > heard + kPiecePatience) return stopped(reply.error());
      std::this_thread::sleep_for(kPieceAgain);
      continue;
    }
    heard = std::chrono::steady_clock::now();
    bytes += piece;
    if (bytes.size() > kMaxPluginBytes)
      return Error{Code::kInvalidArgument, "host " + from.host + " sent more than a plugin may have", ""};
    if (reply->more && piece.size() < kLeastPiece) break;  // it would never end; the hash says that it is not whole
    if (!reply->more) break;
    wish.offset = bytes.size();
  }
  if (sha256_hex(bytes) == wish.sha256) return std::optional(std::move(bytes));
  return Error{Code::kInternal, "what host " + from.host + " sent is not the plugin that it has in its drop folder",
               "load it again; if that does not help, copy the file yourself"};
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

int64_t now_unix_ms() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::milliseconds>(system_clock::now().time_since_epoch()).count();
}

// A task that is not there: perhaps another was meant.
Error with_near_task(Session& session, Error error, const std::string& task) {
  if (error.code != Code::kNotFound) return error;
  const auto tasks = session.ask<bus::TasksReply>(bus::ListTasks{});
  if (!tasks) return error;
  std::vector<std::string> names;
  for (const auto& info : tasks->tasks) names.push_back(info.state.task);
  error.hint = did_you_mean(task, names) + error.hint;
  return error;
}

Error with_near_plugin(Session& session, Error error, const std::string& plugin) {
  if (error.code != Code::kNotFound || plugin.find_first_of("/:") != plugin.npos) return error;
  std::vector<std::string> names = shipped_plugins();
  if (const auto reply = session.ask<bus::PluginsReply>(bus::ListPlugins{})) {
    for (const auto& state : reply->plugins) names.push_back(state.name);
  }
  error.hint = did_you_mean(plugin, names) + "freeride-ctl plugins lists those that have a name; " + error.hint;
  return error;
}

template <class Command>
std::string line_of(const bus::TaskState& task) {
  if constexpr (std::is_same_v<Command, bus::RemoveTask>) return printable("removed: " + task.task) + "\n";
  return render_task_line(task);
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
      const Error error = with_near_task(session, reply.error(), task);
      if (first) {
        std::cerr << error_line(error, session.options().json_errors) << "\n";
      } else {
        first = error;
      }
      if (error.code == Code::kTimeout || !session.connected()) break;
    } else if (session.json()) {
      replies.push_back(to_json(reply->task));
    } else {
      session.out() << line_of<Command>(reply->task.state);
    }
  }
  if (session.json()) session.out() << dump({{"tasks", replies}}, 2) << "\n";
  if (first) return *first;
  return kExitOk;
}

// Whether all workers are on this host, so that a path can be looked at before it is sent.
bool workers_are_here(Session& session) {
  if (session.remote()) return false;
  const auto workers = session.ask<bus::WorkersReply>(bus::ListWorkers{});
  return workers && !workers->workers.empty() &&
         std::all_of(workers->workers.begin(), workers->workers.end(),
                     [prefix = host_id() + ":"](const auto& one) { return one.state.worker.rfind(prefix, 0) == 0; });
}

}  // namespace

Result<bus::Load> make_load(Session& session, const LoadArguments& arguments, std::string& attachment) {
  bus::Load load;
  load.plugin = arguments.plugin;
  if (arguments.plugin.find('/') != std::string::npos) {
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(arguments.plugin, ignored);
    auto bytes = folder ? pack_python_folder(arguments.plugin) : read_plugin(arguments.plugin);
    if (!bytes) return bytes.error();
    load.plugin =
        folder ? package_name(arguments.plugin) + ".py" : std::filesystem::path(arguments.plugin).filename().string();
    if (auto fine = check_plugin_file(*bytes, folder ? load.plugin : arguments.plugin); !fine) return fine.error();
    load.sha256 = sha256_hex(*bytes);
    attachment = std::move(*bytes);
  } else if (const auto from = on_host(arguments.plugin)) {
    auto bytes = read_from_host(session, *from, arguments.plugin);
    if (!bytes) return bytes.error();
    if (*bytes) {
      load.plugin = from->name;
      if (auto fine = check_plugin_file(**bytes, from->name); !fine) return fine.error();
      load.sha256 = sha256_hex(**bytes);
      attachment = std::move(**bytes);
    }
  }
  if (auto s = take(load.params, parse_params(arguments.params)); !s) return s.error();
  // Both travel among the parameters: neither may take the place of one that the user has given.
  for (const auto& [option, value] :
       {std::pair{"interface", &arguments.interface}, std::pair{kPythonParam, &arguments.python}}) {
    if (value->empty() || load.params.count(option) == 0) continue;
    const std::string name(option);
    return Error{Code::kInvalidArgument, "--" + name + " and --param " + name + "=... are one parameter, given twice",
                 "leave one out"};
  }
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
  load.any_job = arguments.any_job;
  load.network = arguments.network;
  load.start_paused = arguments.paused;
  load.no_profile = arguments.no_profile;
  load.user = user_name();
  load.account = arguments.account;
  const char* slurm = std::getenv("SLURM_JOB_ACCOUNT");
  if (load.account.empty() && arguments.replace.empty() && slurm != nullptr) load.account = slurm;
  const bool files = !arguments.options.read.empty() || !arguments.options.write.empty();
  if (auto s = apply_options(arguments.options, files && workers_are_here(session), load); !s) return s.error();
  return load;
}

Result<std::vector<std::string>> meant_tasks(Session& session, const std::vector<std::string>& names,
                                             const std::vector<std::string>& labels, bool live) {
  if (labels.empty()) return names;
  const auto wanted = parse_labels_wanted(labels);
  if (!wanted) return wanted.error();
  const auto tasks = session.ask<bus::TasksReply>(bus::ListTasks{});
  if (!tasks) return tasks.error();
  std::vector<std::string> found = names;
  std::set<std::string> seen(names.begin(), names.end());
  for (const auto& info : tasks->tasks) {
    if (live != info.state.verdict.kind.empty() || !has_labels(info.load, *wanted)) continue;
    if (seen.insert(info.state.task).second) found.push_back(info.state.task);
  }
  if (!found.empty()) return found;
  return Error{Code::kNotFound,
               std::string(live ? "no task that lives" : "no task that has ended") + " has these labels",
               "see freeride-ctl tasks -a -l ..."};
}

namespace {

// Another plugin under a task's name is what one does by a slip, too.
Status ask_sure(Session& session, const LoadArguments& arguments, const bus::Load& load) {
  if (arguments.yes) return {};
  const auto present = session.ask<bus::TaskReply>(bus::ShowTask{arguments.replace});
  if (!present) return present.error();
  const std::string& plugin = present->task.load.plugin;
  if (plugin == load.plugin) return {};
  const std::string question =
      "task " + arguments.replace + " runs " + plugin + "; it would continue with " + load.plugin;
  if (isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1) {
    std::cerr << printable(question) << "; type yes to replace it: " << std::flush;
    std::string answer;
    if (std::getline(std::cin, answer) && answer == "yes") return {};
  }
  return Error{Code::kInvalidArgument, question, "add --yes to replace it"};
}

Result<int> load_once(Session& session, const LoadArguments& arguments) {
  std::string attachment;
  const auto load = make_load(session, arguments, attachment);
  if (!load) return load.error();
  if (arguments.dry_run) {
    const auto plan = session.ask<bus::LoadPlan>(bus::PlanLoad{*load});
    if (!plan) return plan.error();
    session.out() << (session.json() ? dump(to_json(*plan), 2) + "\n" : render_load_plan(*plan));
    return plan->fits ? kExitOk : kExitRejected;
  }
  if (!arguments.sweep.empty()) return load_sweep(session, *load, attachment, arguments);
  if (!arguments.replace.empty()) {
    if (auto sure = ask_sure(session, arguments, *load); !sure) return sure.error();
    // The answer comes when the task has moved. A manager that is not there is told from one that takes its time.
    if (auto there = session.ask<bus::StatusReply>(bus::GetStatus{}); !there) return there.error();
    const auto reply = [&] {
      const Waiting waiting("moving " + arguments.replace + " to " + load->plugin);
      return session.ask<bus::TaskReply>(bus::ReplacePlugin{arguments.replace, *load}, std::move(attachment),
                                         kReplacePatience);
    }();
    return shown(session, reply,
                 [](const auto& r) { return render_task_line(r.task.state) + render_replacement(r.task); });
  }
  const auto reply = [&] {
    const std::string size =
        attachment.empty() ? "" : " (" + human_bytes(static_cast<int64_t>(attachment.size())) + ")";
    Waiting waiting("loading " + load->plugin + size);
    session.on_given([&](double share) { waiting.at(share); });
    auto asked = session.ask<bus::TaskReply>(*load, std::move(attachment));
    session.on_given(nullptr);
    return asked;
  }();
  return shown(session, reply, [](const auto& r) { return render_task_line(r.task.state); });
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
  if (done) return done;
  // Of --replace both the task and the plugin may be what is not there.
  if (arguments.replace.empty()) return with_near_plugin(session, done.error(), arguments.plugin);
  return with_near_task(session, done.error(), arguments.replace);
}

Result<int> run_status(Session& session) {
  return show<bus::StatusReply>(session, bus::GetStatus{}, render_status);
}
Result<int> run_plugins(Session& session) {
  const auto reply = session.ask<bus::PluginsReply>(bus::ListPlugins{});
  if (!reply) return reply.error();
  auto json = to_json(*reply);
  json["shipped"] = shipped_plugins();
  return session.print(json, list_plugins(*reply, shipped_plugins()));
}
Result<int> run_workers(Session& session) {
  const auto reply = session.ask<bus::WorkersReply>(bus::ListWorkers{});
  if (!reply) return reply.error();
  return session.print(to_json(*reply), list_workers(*reply));
}
Result<int> run_tasks(Session& session, const TasksArguments& arguments) {
  TasksWanted wanted;
  wanted.now_unix_ms = now_unix_ms();
  wanted.ended = arguments.all || !arguments.since.empty();
  if (!arguments.since.empty()) {
    const auto span = parse_span_ms(arguments.since);
    if (!span) return Error{span.error().code, "--since: " + span.error().message, span.error().hint};
    wanted.ended_after_unix_ms = wanted.now_unix_ms - *span;
  }
  auto reply = session.ask<bus::TasksReply>(bus::ListTasks{});
  if (!reply) return reply.error();
  if (!arguments.labels.empty()) {
    const auto labels = parse_labels_wanted(arguments.labels);
    if (!labels) return labels.error();
    std::erase_if(reply->tasks, [&](const bus::TaskInfo& task) { return !has_labels(task.load, *labels); });
  }
  auto listing = list_tasks(reply->tasks, wanted);
  if (!arguments.since.empty()) {  // else JSON has all, as ever
    auto& tasks = reply->tasks;
    const auto unwanted = [&wanted](const bus::TaskInfo& task) { return !is_wanted(task, wanted); };
    tasks.erase(std::remove_if(tasks.begin(), tasks.end(), unwanted), tasks.end());
  }
  return session.print(to_json(*reply), std::move(listing));
}
Result<int> run_task(Session& session, const std::string& task) {
  const auto reply = session.ask<bus::TaskReply>(bus::ShowTask{task});
  if (!reply) return with_near_task(session, reply.error(), task);
  return shown(session, reply, [](const bus::TaskReply& r) { return render_task(r.task); });
}

Result<int> run_wait(Session& session, const std::vector<std::string>& tasks, double for_s) {
  // First the events, then the question: what happens in between is in one of them.
  std::vector<std::string> topics;
  for (const std::string& task : tasks) topics.push_back(bus::TaskState::kTopic + ("/" + task));
  auto subscriber = session.subscribe(topics);
  if (!subscriber) return subscriber.error();
  catch_interrupts();
  std::map<std::string, bus::TaskInfo> ended;
  std::set<std::string> waiting(tasks.begin(), tasks.end());
  const auto note = [&](const bus::TaskInfo& info) {
    if (info.state.verdict.kind.empty() || waiting.erase(info.state.task) == 0) return;
    ended[info.state.task] = info;
    if (!session.json()) session.out() << render_task_line(info.state) << std::flush;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(for_s);
  constexpr std::chrono::seconds kAskAgain{5};  // an event may be lost
  auto ask = std::chrono::steady_clock::now();
  while (!waiting.empty() && !interrupted()) {
    const auto now = std::chrono::steady_clock::now();
    if (for_s > 0 && now >= end) break;
    if (now >= ask) {
      ask = now + kAskAgain;
      for (const std::string& task : std::set<std::string>(waiting)) {
        const auto reply = session.ask<bus::TaskReply>(bus::ShowTask{task});
        if (!reply) return with_near_task(session, reply.error(), task);
        note(reply->task);
      }
      continue;
    }
    auto until = ask;
    if (for_s > 0) until = std::min(until, std::chrono::time_point_cast<std::chrono::nanoseconds>(end));
    // A signal that arrives just before the wait is noticed after this long.
    const auto patience = std::min<std::chrono::nanoseconds>(until - now, std::chrono::milliseconds(500));
    const auto event = (*subscriber)->receive(std::chrono::ceil<std::chrono::milliseconds>(patience));
    // Of an earlier task of this name a verdict is kept: so the manager is asked, too.
    if (event && event->is(bus::TaskState::kTopic)) {
      if (const auto state = event->as<bus::TaskState>(); state && !state->verdict.kind.empty()) ask = {};
    }
  }
  if (session.json()) {
    auto list = nlohmann::json::array();
    for (const auto& [name, info] : ended) list.push_back(to_json(info));
    session.out() << dump({{"tasks", list}}, 2) << "\n";
  }
  if (!waiting.empty()) {
    return Error{Code::kExhausted,
                 std::to_string(waiting.size()) + " side tasks have not ended, " + *waiting.begin() +
                     (waiting.size() == 1 ? "" : " and others"),
                 "freeride-ctl tasks says why"};
  }
  const bool well = std::all_of(ended.begin(), ended.end(), [](const auto& entry) {
    const std::string& kind = entry.second.state.verdict.kind;
    return kind == "finished" || kind == "stopped";
  });
  return well ? kExitOk : kExitFailed;
}

Result<int> run_faults(Session& session, const std::string& lift) {
  const auto listed = [&session](const Result<bus::FaultsReply>& reply) -> Result<int> {
    if (!reply) return reply.error();
    return session.print(to_json(*reply), list_faults(*reply));
  };
  if (lift.empty()) return listed(session.ask<bus::FaultsReply>(bus::ListFaults{}));
  const size_t equals = lift.find('=');
  if (equals == lift.npos) {
    return Error{Code::kInvalidArgument, "'" + lift + "' does not say whose block is lifted",
                 "--lift plugin=HASH, user=NAME or job=NAME, as freeride-ctl faults lists them"};
  }
  const std::string scope = lift.substr(0, equals), name = lift.substr(equals + 1);
  return listed(session.ask<bus::FaultsReply>(bus::LiftFaults{scope, scope == "job" ? job_argument(name) : name}));
}
Result<int> run_usage(Session& session, const std::string& since, const std::string& by) {
  const auto length_ns = parse_length(since);
  if (!length_ns) return Error{length_ns.error().code, "--since: " + length_ns.error().message, length_ns.error().hint};
  // Years of it take the manager some seconds, beside what others ask for.
  const bus::GetUsage wish{now_unix_ms() - *length_ns / 1'000'000, by};
  const auto usage = session.ask<bus::UsageReply>(wish, {}, std::chrono::seconds(60));
  if (!usage) return usage.error();
  return session.print(to_json(*usage), list_usage(*usage));
}
Result<int> run_report(Session& session, const std::string& job) {
  const auto reply = session.ask<bus::ReportReply>(bus::GetReport{job_argument(job)});
  if (!reply) return reply.error();
  // The jobs are a list; the whole report is several.
  if (session.options().format == Format::kCsv || !session.options().columns.empty())
    return session.print(to_json(*reply), list_jobs(*reply));
  return shown(session, reply, render_report);
}
Result<int> run_remove(Session& session, const std::vector<std::string>& tasks) {
  return change<bus::RemoveTask>(session, tasks);
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
