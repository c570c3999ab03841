// The manager's answers as text for people. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format.hpp"
#include "freeride/bus/commands.hpp"

namespace freeride::ctl {

std::string render_status(const bus::StatusReply& status);
/// `shipped`: names of those that FreeRide was installed with; a drop folder's of the same name goes first.
Listing list_plugins(const bus::PluginsReply& plugins, const std::vector<std::string>& shipped);

/// Which tasks are listed.
struct TasksWanted {
  bool ended = false;               ///< with those that have ended
  int64_t ended_after_unix_ms = 0;  ///< of these, those since then
  int64_t now_unix_ms = 0;          ///< for "2 h ago"; 0: dates
};
bool is_wanted(const bus::TaskInfo& task, const TasksWanted& wanted);
/// Live ones first; the note says how many ended ones are not shown.
Listing list_tasks(const std::vector<bus::TaskInfo>& tasks, const TasksWanted& wanted);
std::string render_task(const bus::TaskInfo& info);
/// What a program's GPU work has met, as lines of render_task: the third names what passes without a lease.
std::string render_shim(const bus::ShimCounters& shim);
/// What load, stop, pause and resume answer: one line.
std::string render_task_line(const bus::TaskState& task);
/// What became of a replacement that is done: one line.
std::string render_replacement(const bus::TaskInfo& info);
Listing list_workers(const bus::WorkersReply& workers);
Listing list_faults(const bus::FaultsReply& faults);
/// The jobs alone; render_report() has the rest, too.
Listing list_jobs(const bus::ReportReply& report);
std::string render_report(const bus::ReportReply& report);
Listing list_usage(const bus::UsageReply& usage);
/// `kept`: it was there already, and was not taken now.
std::string render_profile(const bus::Profile& profile, bool kept);
/// Of a load that was not made: whether it fits, where, what to expect.
std::string render_load_plan(const bus::LoadPlan& plan);
Listing list_profiles(const bus::ProfilesReply& profiles);

/// How its state, or its end, is coloured.
Tone tone_of(const bus::TaskState& task);
/// "stopped: by user", "crashed (signal 11 in RunNextStep): …", or why it is not running yet.
std::string outcome(const bus::TaskState& task);
/// "+0.12 % (95 %: -0.40 to +0.64 %)", or that there is too little to tell, and how long that takes.
std::string time_increase(const bus::JobMeasures& job);
/// Words on what the slowdown budget leaves to side tasks; empty: everything.
std::string throttled(const bus::JobMeasures& job);
/// The budget of a job whose training has asked for one; empty: it has not.
std::string own_budget(const bus::JobMeasures& job);
/// What it costs a job that its hosts hold waits for other hosts; empty: they do not, or it is not measured.
std::string cost_of_holds(const bus::JobMeasures& job);

}  // namespace freeride::ctl
