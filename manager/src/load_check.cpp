#include "load_check.hpp"

#include <algorithm>

#include "freeride/base/plugin_file.hpp"
#include "freeride/policy/placement.hpp"
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

Error invalid(std::string message, std::string hint = {}) {
  return {Code::kInvalidArgument, std::move(message), std::move(hint)};
}

}  // namespace

Status LoadCheck::check(const bus::Load& load) const {
  if (!load.name.empty() && !is_task_name(load.name))
    return invalid("the task name " + in_quotes(load.name) + " will not do", kTaskNameRule);
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
  if (tasks_.live().size() >= TaskBook::kMaxLive)
    return Error{Code::kExhausted, "there are 10000 live tasks already", "stop some"};
  return {};
}

Status LoadCheck::check_place(const bus::Load& load) const {
  const auto views = capacity_.devices();
  const auto attached = policy::attached_jobs(views);
  const bool known = load.job.empty() || attached.empty() || !policy::meant_jobs(load.job, jobs_.names()).empty() ||
                     !policy::meant_jobs(load.job, attached).empty();
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
  for (size_t n = 2;; ++n) {
    std::string name = base + "-" + std::to_string(n);
    if (!taken(name)) return name;
  }
}

}  // namespace freeride::manager
