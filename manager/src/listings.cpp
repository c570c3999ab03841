#include "listings.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "freeride/base/names.hpp"
#include "freeride/policy/placement.hpp"
#include "text.hpp"

namespace freeride::manager {
namespace {

// Without the log, which ShowTask has: a thousand of them would be a large message.
bus::TaskInfo listed(const Task& task) {
  bus::TaskInfo info = task.row.info;
  info.state.verdict.log_tail.clear();
  return info;
}

}  // namespace

void Listings::tasks(Ticket ticket) const {
  bus::TasksReply reply;
  for (const auto& [id, task] : tasks_.all()) reply.tasks.push_back(listed(task));
  for (const auto& one : copies_.unknown()) reply.tasks.push_back(one.info());
  outside_.answer(ticket, Reply(std::move(reply)));
}

void Listings::workers(Ticket ticket) const {
  bus::WorkersReply reply;
  reply.workers = workers_.infos();
  outside_.answer(ticket, Reply(std::move(reply)));
}

void Listings::ranks(Ticket ticket, const std::string& job) const {
  bus::RanksReply reply;
  reply.ranks = workers_.ranks(job);
  outside_.answer(ticket, Reply(std::move(reply)));
}

void Listings::plugins(Ticket ticket) const {
  bus::PluginsReply reply;
  for (const auto& [name, worker] : workers_.all()) {
    if (!worker.up()) continue;
    for (const auto& [file, plugin] : worker.plugins) reply.plugins.push_back(plugin);
  }
  outside_.answer(ticket, Reply(std::move(reply)));
}

void Listings::status(Ticket ticket) const {
  bus::StatusReply reply;
  reply.version = config_.version;
  reply.state_dir = config_.paths.state_dir.string();
  reply.run_dir = config_.paths.run_dir.string();
  reply.uptime_ms = (clock_.now_ns() - started_ns_) / kNsPerMs;
  reply.pid = static_cast<uint32_t>(getpid());
  for (const auto& [id, task] : tasks_.all()) ++reply.tasks_by_state[task.state().state];
  reply.workers = workers_.infos();
  reply.jobs = jobs_.measures();
  reply.network = config_.network;
  outside_.answer(ticket, Reply(std::move(reply)));
}

void Listings::report(Ticket ticket, const std::string& job) const {
  const auto names = jobs_.names(), meant = policy::meant_jobs(job, names);
  if (!job.empty() && meant.empty()) {
    return outside_.answer(
        ticket, Error{Code::kNotFound,
                      "there is no training job " + in_quotes(job) + (names.empty() ? "" : "; known: " + join(names)),
                      {}});
  }
  bus::ReportReply reply;
  for (const auto& one : meant) {
    for (auto& measures : jobs_.measures(one)) reply.jobs.push_back(std::move(measures));
  }
  for (const auto& [id, task] : tasks_.all()) {
    const std::string& its = task.state().job;
    const bool listed_too =
        job.empty() || its.empty() || its == job ||
        std::any_of(meant.begin(), meant.end(), [&](const auto& one) { return means_job(its, one); });
    if (listed_too) reply.tasks.push_back(listed(task));
  }
  outside_.answer(ticket, Reply(std::move(reply)));
}

}  // namespace freeride::manager
