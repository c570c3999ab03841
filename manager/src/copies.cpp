#include "copies.hpp"

namespace freeride::manager {

using policy::Standing;
using policy::Why;

policy::Standing Copies::standing(const Worker& worker, const bus::TaskReport& report) const {
  const Task* task = tasks_.of_report(report);
  policy::CopyView view;
  view.has_epochs = worker.tells_epochs();
  view.reported = report.epoch;
  if (task != nullptr) {
    view.live = task->live();
    view.ended = !task->live();
    view.epoch = task->row.info.epoch;
    view.here = task->on(worker.name);
    view.queued = task->phase == Task::Phase::kQueued && (view.has_epochs || task->row.info.last_worker == worker.name);
  }
  return policy::standing_of(view);
}

bus::TaskInfo Copies::Unknown::info() const {
  bus::TaskInfo info;
  info.load.name = info.state.task = report->task;
  info.state.state = report->state;
  info.state.worker = worker->name;
  info.state.counters = report->counters;
  info.revision = report->revision;
  info.epoch = report->epoch;
  info.instance = report->instance;
  policy::WhyDetail detail;
  detail.what = worker->name;
  info.state.why = policy::why_name(Why::kNotRecorded);
  info.state.reason = policy::render_why(Why::kNotRecorded, detail);
  return info;
}

std::vector<Copies::Unknown> Copies::unknown() const {
  std::vector<Unknown> found;
  for (const auto& [name, worker] : workers_.all()) {
    for (const auto& [task, report] : worker.tasks) {
      if (report.purpose == "profile" || report.state == "STOPPED") continue;
      if (standing(worker, report) == Standing::kUnknown) found.push_back({&worker, &report});
    }
  }
  return found;
}

std::optional<Copies::Unknown> Copies::find_unknown(const std::string& name) const {
  for (const std::string& one : workers_.reporting(name)) {
    const Worker& worker = workers_.at(one);
    const bus::TaskReport& report = worker.tasks.at(name);
    if (report.purpose == "profile" || report.state == "STOPPED") continue;
    if (standing(worker, report) == Standing::kUnknown) return Unknown{&worker, &report};
  }
  return std::nullopt;
}

const char* Copies::settled_as(const Worker& worker, const bus::TaskReport& report) const {
  if (report.purpose == "profile") return "ended";
  switch (standing(worker, report)) {
    case Standing::kEnded:
      return tasks_.of_report(report)->unsaved ? "" : "ended";
    case Standing::kSuperseded:
      return "again";
    default:
      return "";
  }
}

}  // namespace freeride::manager
