#include "sweep.hpp"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "exit_code.hpp"
#include "freeride/base/names.hpp"
#include "freeride/base/plugin_file.hpp"
#include "json.hpp"
#include "render.hpp"

namespace freeride::ctl {
namespace {

// "NAME-3"; without a name the plugin's.
std::string base_name(const bus::Load& load) {
  std::string name = load.name;
  if (name.empty()) {
    name = load.plugin.substr(load.plugin.rfind('/') + 1);
    name = name.substr(0, name.rfind('.'));
    for (char& c : name) c = is_task_name_char(c) ? c : '-';
  }
  return name.substr(0, kMaxTaskName - 5);
}

}  // namespace

Result<int> load_sweep(Session& session, const bus::Load& load, const std::string& attachment,
                       const LoadArguments& arguments) {
  const auto all = combinations(arguments.sweep);
  if (!all) return all.error();
  if (!arguments.replace.empty()) return Error{Code::kInvalidArgument, "--sweep and --replace exclude each other", ""};
  std::string names;
  for (const auto& [key, value] : all->front()) {
    if (load.params.count(key) != 0)
      return Error{Code::kInvalidArgument, "'" + key + "' is both swept and given with --param", "leave one out"};
    names += (names.empty() ? "" : ",") + key;
  }
  const std::string base = base_name(load);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string group = base + " " + std::to_string(getpid()) + "." + std::to_string(now.count());
  std::vector<std::string> made;
  auto tasks = nlohmann::json::array();
  for (size_t i = 0; i < all->size(); ++i) {
    bus::Load one = load;
    one.name = base + "-" + std::to_string(i + 1);
    one.labels["sweep"] = names;
    for (const auto& [key, value] : (*all)[i]) one.params[key] = one.labels[key] = value;
    one.group = group;
    one.parallel = arguments.parallel;
    // The content travels once; the manager has it then.
    const auto reply = session.ask<bus::TaskReply>(one, i == 0 ? attachment : std::string());
    if (!reply) {
      for (const std::string& name : made) (void)session.ask<bus::TaskReply>(bus::StopTask{name});
      Error error = reply.error();
      if (error.code == Code::kTimeout) error.hint = "look with freeride-ctl tasks whether there is " + one.name;
      if (!made.empty())
        error.message = "task " + one.name + ": " + error.message + "; the " + std::to_string(made.size()) +
                        " before it are stopped again";
      return error;
    }
    made.push_back(reply->task.state.task);
    if (session.json()) {
      tasks.push_back(to_json(reply->task));
    } else {
      session.out() << render_task_line(reply->task.state);
    }
  }
  if (session.json()) session.out() << dump({{"tasks", tasks}}, 2) << "\n";
  return kExitOk;
}

}  // namespace freeride::ctl
