// What users ask for.
#include <spdlog/spdlog.h>

#include <unistd.h>
#include <algorithm>

#include "core.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/plugin_file.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMaxParams = 64;
constexpr size_t kMaxParamBytes = 4096;

std::string stem(const std::string& file) {
  std::string name = file.substr(file.rfind('/') + 1);
  if (is_plugin_file_name(name)) name.resize(name.size() - 3);
  for (char& c : name) {
    if (!is_task_name_char(c)) c = '-';
  }
  name = name.substr(0, kMaxTaskName - 8);
  return is_task_name(name) ? name : "task";
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > 8 ? text + ", ..." : text;
}

Error invalid(std::string message, std::string hint = {}) {
  return {Code::kInvalidArgument, std::move(message), std::move(hint)};
}

}  // namespace

Status Core::check_load(const bus::Load& load) const {
  if (!load.name.empty() && !is_task_name(load.name)) {
    return invalid("the task name " + in_quotes(load.name) + " will not do", kTaskNameRule);
  }
  if (load.stage < -1 || load.replica < -1) return invalid("stages and replicas count from 0");
  if (load.memory_bytes < 0) return invalid("memory cannot be negative");
  if (!load.job.empty() && !is_plain(load.job)) return invalid("the job name " + in_quotes(load.job) + " will not do");
  if (!load.user.empty() && !is_plain(load.user))
    return invalid("the user name " + in_quotes(load.user) + " will not do");
  if (!load.plugin.empty() && !is_plain(load.plugin, kMaxFileName))
    return invalid("the plugin name " + in_quotes(load.plugin) + " will not do");
  if (load.params.size() > kMaxParams) return invalid("more than 64 parameters");
  for (const auto& [key, value] : load.params) {
    if (!is_plain(key) || key.find('=') != std::string::npos)
      return invalid("the parameter name " + in_quotes(key) + " will not do");
    if (value.size() > kMaxParamBytes || value.find('\0') != std::string::npos) {
      return invalid("the value of parameter " + key + " is too long or holds a NUL");
    }
  }
  if (live_.size() >= kMaxLiveTasks) return Error{Code::kExhausted, "there are 10000 live tasks already", "stop some"};
  return {};
}

Status Core::check_job(const bus::Load& load) const {
  const auto views = device_views();
  const auto attached = policy::attached_jobs(views);
  const bool known = load.job.empty() || attached.empty() || jobs_.count(load.job) != 0 ||
                     std::find(attached.begin(), attached.end(), load.job) != attached.end();
  if (!known) {
    return Error{Code::kNotFound, "there is no training job " + in_quotes(load.job) + "; attached: " + join(attached),
                 "choose one of those, or load before any trainer attaches to wait for one"};
  }
  policy::PlacementRequest request;
  request.job = load.job;
  request.stage = load.stage;
  request.replica = load.replica;
  request.memory_bytes = load.memory_bytes;
  request.when_idle = load.when_idle;
  return policy::check_request(request, views);
}

// In this order: the bytes that came along, content by its hash, a file name in the drop folders.
Result<std::string> Core::resolve_plugin(bus::Load& load, const std::string& attachment) {
  if (!attachment.empty()) {
    auto sha256 = content_.put(attachment, load.plugin.empty() ? "the plugin" : load.plugin);
    if (sha256 && !load.sha256.empty() && load.sha256 != *sha256)
      return invalid("the plugin's bytes do not match the SHA-256 given");
    return sha256;
  }
  if (!load.sha256.empty()) {
    if (!is_sha256(load.sha256)) return invalid(in_quotes(load.sha256) + " is not a SHA-256");
    if (content_.has(load.sha256)) return load.sha256;
    for (const auto& [name, worker] : workers_) {
      for (const auto& [file, plugin] : worker.plugins) {
        if (worker.up() && plugin.sha256 == load.sha256) return load.sha256;
      }
    }
    return Error{Code::kNotFound, "no plugin with SHA-256 " + load.sha256 + " is known", "load it from a path"};
  }
  if (load.plugin.empty())
    return invalid("no plugin is named", "give a path, or the name of a file in the drop folder");
  if (load.plugin.find('/') != std::string::npos) {
    return invalid("the plugin " + in_quotes(load.plugin) + " came without its content",
                   "freeride-ctl sends it along for a path");
  }
  std::string rejected;
  std::vector<std::string> known;
  for (const auto& [name, worker] : workers_) {
    if (!worker.up()) continue;
    for (const auto& [file, plugin] : worker.plugins) {
      if (plugin.state != "rejected") known.push_back(file);
      if (file != load.plugin) continue;
      if (plugin.state == "rejected") {
        rejected = plugin.reason;
      } else if (is_sha256(plugin.sha256)) {
        return plugin.sha256;
      }
    }
  }
  if (!rejected.empty())
    return Error{Code::kRejected, "plugin " + load.plugin + " was rejected: " + rejected,
                 "mend the file and drop it again"};
  // No worker has reported it (yet): the user may just have dropped it, or no worker may be up.
  const auto dropped = config_.paths.drop_dir() / load.plugin;
  auto bytes = read_file(dropped, kMaxPluginBytes);
  if (bytes) return content_.put(*bytes, load.plugin);
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  return Error{Code::kNotFound,
               "there is no plugin " + in_quotes(load.plugin) + " in the drop folder " +
                   config_.paths.drop_dir().string() + (known.empty() ? "" : "; there are: " + join(known)),
               "drop the file there, or give a path (anything with a '/')"};
}

Result<std::string> Core::choose_name(const bus::Load& load) const {
  const auto taken = [this](const std::string& name) {
    return live_.count(name) != 0 || profile_runs_.count(name) != 0;
  };
  if (!load.name.empty()) {
    if (!taken(load.name)) return load.name;
    return Error{Code::kAlreadyExists, "a task named " + load.name + " is there already",
                 "choose another --name or stop that one"};
  }
  const std::string base = stem(load.plugin);
  if (!taken(base)) return base;
  for (size_t n = 2;; ++n) {
    std::string name = base + "-" + std::to_string(n);
    if (!taken(name)) return name;
  }
}

void Core::load(Ticket ticket, const std::string& request_id, const bus::Load& asked, const std::string& attachment) {
  if (!is_plain(request_id, 256)) return outside_.answer(ticket, invalid("the request has no id"), {});
  // The bus remembers answers for a minute; this remembers them over a restart, so that a repeated load never makes a
  // second task.
  auto repeated = store_->task_of_request(request_id);
  if (!repeated) return outside_.answer(ticket, repeated.error(), {});
  if (*repeated) {
    const auto task = tasks_.find(**repeated);
    if (task != tasks_.end()) return answer_task(ticket, task->second);
    return outside_.answer(ticket, Error{Code::kNotFound, "the task of this request has ended and was forgotten", {}},
                           {});
  }
  bus::Load load = asked;
  if (auto checked = check_load(load); !checked) return outside_.answer(ticket, checked.error(), {});
  if (auto checked = check_job(load); !checked) return outside_.answer(ticket, checked.error(), {});
  auto name = choose_name(load);
  if (!name) return outside_.answer(ticket, name.error(), {});
  auto sha256 = resolve_plugin(load, attachment);
  if (!sha256) return outside_.answer(ticket, sha256.error(), {});
  load.name = *name;
  load.sha256 = *sha256;

  Task task;
  task.row.id = next_id_;
  task.row.info.load = load;
  task.row.info.submitted_unix_ms = unix_ms_();
  auto& state = task.row.info.state;
  state.task = *name;
  state.plugin = load.plugin;
  state.sha256 = *sha256;
  state.job = load.job;
  state.stage = load.stage;
  state.replica = load.replica;
  state.state = "SUBMITTED";
  state.reason = "submitted";
  state.paused_by_user = load.start_paused;
  if (auto added = store_->add_task(task.row, request_id, task.row.info.submitted_unix_ms); !added) {
    release_content(*sha256);
    disk_trouble(added.error());
    return outside_.answer(ticket, added.error(), {});
  }
  ++next_id_;
  const int64_t id = task.row.id;
  live_[*name] = id;
  Task& kept = tasks_.emplace(id, std::move(task)).first->second;
  spdlog::info("task {}: submitted ({}, {})", *name, load.plugin, sha256->substr(0, 12));
  outside_.publish(kept.state());
  schedule_due_ = true;
  schedule();
  next_tick_ns_ = std::min(next_tick_ns_, clock_.now_ns() + kNsPerSec);
  answer_task(ticket, kept);
}

// Changes a task on disk first; where the disk refuses, the change is undone unless it is one that must not wait for a
// disk.
void Core::apply_order(Ticket ticket, Task& task, const char* doing, const std::function<void(Task&)>& change,
                       bool even_unsaved) {
  const TaskRow before = task.row;
  change(task);
  auto saved = store_->save_task(task.row);
  if (!saved && !even_unsaved) {
    task.row = before;
    disk_trouble(saved.error());
    return outside_.answer(ticket, saved.error(), {});
  }
  task.unsaved = !saved.ok();
  send_task_order(task);
  outside_.publish(task.state());
  if (saved) return answer_task(ticket, task);
  disk_trouble(saved.error());
  Error error = saved.error();
  error.message = "task " + task.name() + " is being " + doing + ", but that could not be recorded: " + error.message;
  outside_.answer(ticket, error, {});
}

void Core::stop(Ticket ticket, const std::string& name) {
  auto found = task_to_order(name, "stop");
  if (!found) return outside_.answer(ticket, found.error(), {});
  Task& task = **found;
  Worker* worker = worker_of(task.state().worker);
  const bool reachable = task.on_worker() && worker != nullptr && worker->up();
  if (!reachable) {
    bus::Verdict verdict;
    verdict.kind = "stopped";
    verdict.reason =
        task.on_worker() ? "stopped by the user while its worker was away" : "stopped by the user before it ran";
    end_task(task, verdict);
    if (!task.unsaved) return answer_task(ticket, task);
    return outside_.answer(ticket,
                           Error{Code::kUnavailable, "task " + name + " is stopped, but that could not be recorded",
                                 "check the state directory's disk"},
                           {});
  }
  const auto change = [](Task& t) {
    t.row.stopping = true;
    t.state().reason = "stopping";
  };
  apply_order(ticket, task, "stopped", change, true);
}

void Core::pause(Ticket ticket, const std::string& name) {
  auto found = task_to_order(name, "pause");
  if (!found) return outside_.answer(ticket, found.error(), {});
  if ((*found)->row.stopping)
    return outside_.answer(ticket, invalid("cannot pause " + name + ": it is being stopped"), {});
  const auto change = [](Task& t) {
    t.state().paused_by_user = true;
    if (t.on_worker()) t.state().reason = "paused by the user";
  };
  apply_order(ticket, **found, "paused", change, true);
}

void Core::resume(Ticket ticket, const std::string& name) {
  auto found = task_to_order(name, "resume");
  if (!found) return outside_.answer(ticket, found.error(), {});
  if ((*found)->row.stopping)
    return outside_.answer(ticket, invalid("cannot resume " + name + ": it is being stopped"), {});
  const auto change = [](Task& t) {
    t.state().paused_by_user = false;
    if (t.on_worker()) t.state().reason.clear();
  };
  apply_order(ticket, **found, "resumed", change, false);
}

void Core::show(Ticket ticket, const std::string& name) {
  const Task* task = latest_task(name);
  if (task == nullptr) {
    return outside_.answer(ticket,
                           Error{Code::kNotFound, "there is no task " + in_quotes(name), "see freeride-ctl tasks"}, {});
  }
  Worker* worker = worker_of(task->state().worker);
  if (!task->on_worker() || worker == nullptr || !worker->up())
    return answer_task(ticket, *task, task->state().verdict.log_tail);
  bus::GetLog order;
  order.task = name;
  auto id = outside_.send(worker->peer, order);
  if (!id) return answer_task(ticket, *task);
  pending_[*id] = {Pending::Kind::kLog, worker->peer, worker->name, task->row.id, {}, ticket, clock_.now_ns()};
  next_tick_ns_ = std::min(next_tick_ns_, clock_.now_ns() + kNsPerSec);
}

void Core::list_tasks(Ticket ticket) {
  bus::TasksReply reply;
  for (const auto& [id, task] : tasks_) {
    reply.tasks.push_back(task.row.info);
    reply.tasks.back().state.verdict.log_tail.clear();  // ShowTask has it; a thousand of them would be a large message
  }
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

void Core::list_workers(Ticket ticket) {
  bus::WorkersReply reply;
  reply.workers = workers_info();
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

void Core::list_plugins(Ticket ticket) {
  bus::PluginsReply reply;
  for (const auto& [name, worker] : workers_) {
    if (!worker.up()) continue;
    for (const auto& [file, plugin] : worker.plugins) reply.plugins.push_back(plugin);
  }
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

void Core::status(Ticket ticket) {
  bus::StatusReply reply;
  reply.version = config_.version;
  reply.state_dir = config_.paths.state_dir.string();
  reply.run_dir = config_.paths.run_dir.string();
  reply.uptime_ms = (clock_.now_ns() - started_ns_) / kNsPerMs;
  reply.pid = static_cast<uint32_t>(getpid());
  for (const auto& [id, task] : tasks_) ++reply.tasks_by_state[task.state().state];
  reply.workers = workers_info();
  for (const auto& [name, job] : jobs_) reply.jobs.push_back(job.measures());
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

void Core::report(Ticket ticket, const std::string& job) {
  if (!job.empty() && jobs_.count(job) == 0) {
    std::vector<std::string> names;
    for (const auto& [name, known] : jobs_) names.push_back(name);
    return outside_.answer(
        ticket,
        Error{Code::kNotFound,
              "there is no training job " + in_quotes(job) + (names.empty() ? "" : "; known: " + join(names)),
              {}},
        {});
  }
  bus::ReportReply reply;
  for (const auto& [name, known] : jobs_) {
    if (job.empty() || name == job) reply.jobs.push_back(known.measures());
  }
  for (const auto& [id, task] : tasks_) {
    if (!job.empty() && !task.state().job.empty() && task.state().job != job) continue;
    reply.tasks.push_back(task.row.info);
    reply.tasks.back().state.verdict.log_tail.clear();
  }
  outside_.answer(ticket, Reply(std::move(reply)), {});
}

}  // namespace freeride::manager
