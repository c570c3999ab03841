#include "load_check.hpp"

#include <algorithm>

#include "freeride/base/plugin_file.hpp"
#include "freeride/policy/placement.hpp"
#include "freeride/policy/task_files.hpp"
#include "text.hpp"
#include "wishes.hpp"

namespace freeride::manager {
namespace {

constexpr size_t kMaxParams = 64;
constexpr size_t kMaxParamBytes = 4096;
constexpr size_t kMostWords = 1024, kMostWordBytes = 64 << 10;  // of a program
constexpr size_t kMostNumbers = 1024;                           // plugins whose last number is remembered

std::string stem(const std::string& file) {
  std::string name = file.substr(file.rfind('/') + 1);
  if (is_plugin_file_name(name)) name.resize(name.size() - 3);
  for (char& c : name) {
    if (!is_task_name_char(c)) c = '-';
  }
  name = name.substr(0, kMaxTaskName - 8);
  return is_task_name(name) ? name : "task";
}

Error invalid(std::string message, std::string hint = {}) {
  return {Code::kInvalidArgument, std::move(message), std::move(hint)};
}

Status check_program(const bus::Load& load) {
  if (load.program.empty()) return {};
  size_t bytes = 0;
  for (const std::string& word : load.program) {
    if (word.find('\0') != std::string::npos) return invalid("an argument of the program holds a NUL");
    bytes += word.size() + 1;
  }
  if (load.program.front().empty()) return invalid("the program has no name", "freeride-ctl submit -- PROGRAM ARGS");
  if (load.program.size() > kMostWords || bytes > kMostWordBytes)
    return invalid("the program has more than 1024 arguments, or they are longer than 64 KiB",
                   "put them into a file, and give that with --read");
  if (!load.no_profile || load.steps != 0 || !load.params.empty())
    return invalid("a program has no steps to profile or to count, and no parameters",
                   "leave those options out; what follows the program's name goes to the program");
  return {};
}

}  // namespace

bus::Load LoadCheck::named(bus::Load load) {
  if (load.program.empty()) return load;
  const std::string& path = load.program.front();
  load.plugin = path.substr(path.rfind('/') + 1).substr(0, kMaxFileName);
  for (char& c : load.plugin) {
    if (!is_plain(std::string(1, c))) c = '-';
  }
  return load;
}

Status LoadCheck::check(const bus::Load& load) const {
  if (!load.name.empty() && !is_task_name(load.name))
    return invalid("the task name " + in_quotes(load.name) + " will not do", kTaskNameRule);
  if (load.stage < -1 || load.replica < -1) return invalid("stages and replicas count from 0");
  if (load.memory_bytes < 0) return invalid("memory cannot be negative");
  if (load.any_job && !load.job.empty()) return invalid("it names the job " + load.job + " and takes any");
  if (!load.job.empty() && !is_plain(load.job)) return invalid("the job name " + in_quotes(load.job) + " will not do");
  if (!load.user.empty() && !is_plain(load.user))
    return invalid("the user name " + in_quotes(load.user) + " will not do");
  if (!load.plugin.empty() && !is_plain(load.plugin, kMaxFileName))
    return invalid("the plugin name " + in_quotes(load.plugin) + " will not do");
  if (auto s = check_program(load); !s) return s;
  if (load.params.size() > kMaxParams) return invalid("more than 64 parameters");
  for (const auto& [key, value] : load.params) {
    if (!is_plain(key) || key.find('=') != std::string::npos)
      return invalid("the parameter name " + in_quotes(key) + " will not do");
    if (value.size() > kMaxParamBytes || value.find('\0') != std::string::npos) {
      return invalid("the value of parameter " + key + " is too long or holds a NUL");
    }
  }
  std::vector<policy::WantedFile> files;
  for (const bus::FileGrant& file : load.files) files.push_back({file.source, file.target, file.write});
  if (auto s = policy::check_files(files); !s) return s;
  if (auto s = policy::check_environment(load.env); !s) return s;
  if (auto s = policy::check_working_dir(load.working_dir); !s) return s;
  if (!load.files.empty() && load.uid < 0) {
    return Error{Code::kPermission,
                 "files are used under the submitter's rights, and no kernel vouches for your user number here",
                 "load the task on a host, over its own socket, instead of with a key"};
  }
  if (load.labels.size() > kMaxParams) return invalid("more than 64 labels");
  for (const auto& [key, value] : load.labels) {
    if (!is_plain(key, 64) || key.find('=') != std::string::npos || (!value.empty() && !is_plain(value)))
      return invalid("the label " + in_quotes(key + "=" + value) + " will not do");
  }
  if (load.after.size() > kMaxParams) return invalid("more than 64 tasks to follow");
  for (const std::string& after : load.after) {
    auto name = parse_after(after);
    if (!name) return name.error();
    const Task* task = tasks_.latest(*name);
    if (task == nullptr)
      return Error{Code::kNotFound, "there is no task " + in_quotes(*name) + " to follow", "see freeride-ctl tasks"};
    if (!task->live() && task->state().verdict.kind != "finished") {
      return Error{Code::kRejected, "task " + *name + " has not finished: " + task->state().verdict.kind,
                   "a task can follow one that finishes"};
    }
  }
  if (!load.restart.empty() && load.restart != "no" && load.restart != "on-failure")
    return invalid("there is no restart policy " + in_quotes(load.restart), "no, or on-failure");
  if (load.time_limit_s < 0) return invalid("a time limit cannot be negative");
  if (!load.group.empty() && !is_plain(load.group))
    return invalid("the group " + in_quotes(load.group) + " will not do");
  return check_count();
}

Status LoadCheck::check_count() const {
  if (const size_t most = limits_.live_tasks(); tasks_.live().size() >= most)
    return Error{Code::kExhausted, "there are " + std::to_string(most) + " live tasks already", "stop some"};
  return {};
}

Status LoadCheck::check_place(const bus::Load& load) const {
  const policy::Placer& devices = capacity_.attached();
  const auto& attached = devices.jobs();
  const bool known = load.job.empty() || attached.empty() || !policy::meant_jobs(load.job, jobs_.names()).empty() ||
                     !policy::meant_jobs(load.job, attached).empty();
  if (!known) {
    return Error{Code::kNotFound, "there is no training job " + in_quotes(load.job) + "; attached: " + join(attached),
                 "choose one of those, or load before any trainer attaches to wait for one"};
  }
  return devices.check(request_of(load));
}

Status LoadCheck::check_faults(const std::string& sha256, const std::string& user) const {
  if (auto blocked = faults_.blocked(sha256, user, {})) return Error{Code::kRejected, *blocked, {}};
  return {};
}

Result<std::string> LoadCheck::choose_name(const bus::Load& load) const {
  const auto taken = [this](const std::string& name) {
    return tasks_.live().count(name) != 0 || runs_.all().count(name) != 0 || copies_.find_unknown(name).has_value();
  };
  if (!load.name.empty()) {
    if (!taken(load.name)) return load.name;
    return Error{Code::kAlreadyExists, "a task named " + load.name + " is there already",
                 "choose another --name or stop that one"};
  }
  const std::string base = stem(load.plugin);
  if (!taken(base)) return base;
  // After the last one that was given, while that is there: many are loaded in a row.
  const auto numbered = [&](size_t n) { return base + "-" + std::to_string(n); };
  if (numbers_.size() >= kMostNumbers) numbers_.clear();
  size_t& last = numbers_[base];
  for (size_t n = last != 0 && taken(numbered(last)) ? last + 1 : 2;; ++n) {
    if (taken(numbered(n))) continue;
    last = n;
    return numbered(n);
  }
}

}  // namespace freeride::manager
