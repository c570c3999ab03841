// The manager's answers as text for people. Pure functions; any thread.
#pragma once

#include <string>

#include "freeride/bus/commands.hpp"

namespace freeride::ctl {

std::string render_status(const bus::StatusReply& status);
std::string render_plugins(const bus::PluginsReply& plugins);
std::string render_tasks(const std::vector<bus::TaskInfo>& tasks);
std::string render_task(const bus::TaskInfo& info);
/// What load, stop, pause and resume answer: one line.
std::string render_task_line(const bus::TaskState& task);
/// What became of a replacement that is done: one line.
std::string render_replacement(const bus::TaskInfo& info);
std::string render_workers(const bus::WorkersReply& workers);
std::string render_faults(const bus::FaultsReply& faults);
std::string render_report(const bus::ReportReply& report);
/// `kept`: it was there already, and was not taken now.
std::string render_profile(const bus::Profile& profile, bool kept);
std::string render_profiles(const bus::ProfilesReply& profiles);

/// "stopped: by user", "crashed (signal 11 in RunNextStep): …", or why it is not running yet.
std::string outcome(const bus::TaskState& task);
/// "+0.12 % (95 %: -0.40 to +0.64 %)", or that there is too little to tell.
std::string time_increase(const bus::JobMeasures& job);
/// Words on what the slowdown budget leaves to side tasks; empty: everything.
std::string throttled(const bus::JobMeasures& job);

}  // namespace freeride::ctl
