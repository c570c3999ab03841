#include "why.hpp"

#include <iostream>

#include "exit_code.hpp"
#include "format.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"
#include "jobs.hpp"
#include "json.hpp"
#include "moment.hpp"
#include "ranks.hpp"
#include "recording.hpp"
#include "render.hpp"
#include "story.hpp"

namespace freeride::ctl {
namespace {

constexpr int64_t kAround = 5 * kNsPerSec;
constexpr int64_t kLately = 60 * kNsPerSec;

Result<Story> story_of(const WhyArguments& arguments, int64_t at_ns, int64_t from_ns, int64_t to_ns) {
  auto reader = open_recording(arguments.recording, range_for(from_ns, to_ns));
  if (!reader) return reader.error();
  Story story = read_story(**reader, subject_of(arguments.subject), at_ns, from_ns, to_ns);
  if ((*reader)->damaged() > 0) {
    std::cerr << "freeride-ctl: " << (*reader)->damaged() << " damaged chunks of the recording were left out\n";
  }
  return story;
}

Result<int> tell(Session& session, const WhyArguments& arguments, int64_t at_ns, int64_t from_ns, int64_t to_ns,
                 bool moment) {
  auto story = story_of(arguments, at_ns, from_ns, to_ns);
  if (!story) return story.error();
  if (!story->known) {
    if (story->events == 0) {
      return Error{Code::kNotFound, "nothing was recorded around " + moment_text(at_ns),
                   "see freeride-ctl recording ls"};
    }
    return Error{Code::kNotFound,
                 "the recording knows no task or rank " + arguments.subject + " at " + moment_text(at_ns),
                 "a rank is written JOB/RANK; see freeride-ctl recording view"};
  }
  session.out() << (session.json() ? dump(story_json(*story, moment)) + "\n" : render_story(*story, moment));
  return kExitOk;
}

// Whose story this is: the task that is asked for, or all on the rank's device, and the ranks that are on it.
struct Present {
  std::vector<bus::TaskInfo> tasks;
  std::vector<bus::RankInfo> ranks;
};

std::vector<bus::RankInfo> ranks_of(const bus::WorkerInfo& worker) {
  std::vector<bus::RankInfo> ranks;
  for (const auto& rank : worker.ranks) ranks.push_back({rank, worker.state.host, worker.silent_ms});
  return ranks;
}

Result<Present> present_of_task(Session& session, const std::string& name) {
  auto reply = session.ask<bus::TaskReply>(bus::ShowTask{name});
  if (!reply) return reply.error();
  Present found;
  found.tasks.push_back(reply->task);
  const bus::TaskState& task = reply->task.state;
  if (task.worker.empty() || !task.verdict.kind.empty()) return found;
  // Welcome, not needed.
  if (const auto workers = session.ask<bus::WorkersReply>(bus::ListWorkers{})) {
    for (const auto& worker : workers->workers) {
      if (worker.state.worker == task.worker) found.ranks = ranks_of(worker);
    }
  }
  return found;
}

Result<Present> present_of(Session& session, const Subject& subject) {
  if (subject.is_task()) return present_of_task(session, subject.name);
  auto workers = session.ask<bus::WorkersReply>(bus::ListWorkers{});
  if (!workers) return workers.error();
  Present found;
  const bus::WorkerInfo* at = nullptr;
  for (const auto& worker : workers->workers) {
    for (const auto& rank : worker.ranks) {
      if (rank.job != subject.job || rank.rank != subject.rank) continue;
      at = &worker;
      found.ranks = {{rank, worker.state.host, worker.silent_ms}};
    }
  }
  if (at == nullptr) {
    return Error{Code::kNotFound, "no rank " + subject.name + " is attached", "see freeride-ctl workers"};
  }
  auto tasks = session.ask<bus::TasksReply>(bus::ListTasks{});
  if (!tasks) return tasks.error();
  for (const auto& task : tasks->tasks) {
    if (task.state.worker == at->state.worker && task.state.state != "STOPPED") found.tasks.push_back(task);
  }
  return found;
}

Result<int> tell_now(Session& session, const WhyArguments& arguments, int64_t now_ns) {
  const Subject subject = subject_of(arguments.subject);
  const auto present = present_of(session, subject);
  if (!present) return present.error();
  // A recording is welcome, not needed; of a manager on another host this host's says nothing.
  const auto lately = session.remote() ? Result<Story>(Error{Code::kNotFound, "", ""})
                                       : story_of(arguments, now_ns, now_ns - kLately, now_ns);
  const bool has_story = lately && lately->known && (lately->bubbles > 0 || !lately->changes.empty());
  if (session.json()) {
    nlohmann::json json = {
        {"subject", subject.name}, {"tasks", nlohmann::json::array()}, {"ranks", nlohmann::json::array()}};
    for (const auto& task : present->tasks) {
      json["tasks"].push_back(to_json(task.state));
      for (const auto& shim : task.shim) json["tasks"].back()["shim"] = to_json(shim);
    }
    for (const auto& rank : present->ranks) json["ranks"].push_back(to_json(rank));
    if (has_story) json["lately"] = story_json(*lately, false);
    session.out() << dump(json) << "\n";
    return kExitOk;
  }
  for (const auto& task : present->tasks) {
    session.out() << now_line(task.state);
    for (const auto& shim : task.shim) session.out() << render_shim(shim);
  }
  for (const auto& rank : present->ranks) session.out() << phase_line(rank);
  if (present->tasks.empty()) session.out() << printable(subject.name) << ": no side task is on its device\n";
  if (has_story) session.out() << render_story(*lately, false);
  return kExitOk;
}

}  // namespace

std::string now_line(const bus::TaskState& task) {
  const bool ended = !task.verdict.kind.empty();
  std::string text = task.task + ": " + task.state;
  if (!task.worker.empty()) text += " on " + task.worker;
  if (!task.reason.empty()) text += "; " + task.reason + (task.why.empty() ? "" : " [" + task.why + "]");
  if (task.reason.empty() && !ended) text += "; nothing is in its way";
  if (ended) text += "; verdict " + task.verdict.kind + ": " + task.verdict.reason;
  return printable(text) + "\n";
}

std::string phase_line(const bus::RankInfo& rank) {
  const std::string phase = present_phase(rank);
  if (phase.empty()) return "";
  return printable(shown_job(rank.state.job) + "/" + std::to_string(rank.state.rank) + ": in the phase " + phase) +
         "\n";
}

Result<int> run_why(Session& session, const WhyArguments& arguments) {
  const int64_t now = clock_ns(CLOCK_REALTIME);
  if (!arguments.at.empty()) {
    auto at = parse_moment(arguments.at, now);
    if (!at) return at.error();
    return tell(session, arguments, *at, *at - kAround, *at + kAround, true);
  }
  if (!arguments.since.empty()) {
    auto length = parse_length(arguments.since);
    if (!length) return length.error();
    return tell(session, arguments, now, now - *length, now, false);
  }
  return tell_now(session, arguments, now);
}

}  // namespace freeride::ctl
