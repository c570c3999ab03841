// From what the worker knows to what goes over the bus: plain conversions.
#pragma once

#include <cstdint>
#include <string>

#include "acting/act_event.hpp"
#include "daemon/trainers.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/holdout.hpp"

namespace freeride::worker {

bus::BubbleBegin bubble_begin(const AttachedRank& rank, const ActEvent& event);
bus::BubbleEnd bubble_end(const AttachedRank& rank, const ActEvent& event);
bus::TrainingIteration training_iteration(const AttachedRank& rank, const ActEvent& event);
/// From the rank's page, as it is now; without the worker's name.
bus::TrainingState training_state(const AttachedRank& rank, int64_t now_ns);
bus::TaskProgress task_progress(const std::string& worker, const bus::TaskReport& report);
/// With shares outside 0–100 brought inside.
policy::HoldoutPlan holdout_plan(const bus::HoldoutPlan& plan);

/// A line of /proc/meminfo, e.g. "MemTotal:", in bytes; 0: not there.
int64_t host_memory_bytes(const char* key);
/// Of /proc/cpuinfo.
std::string cpu_model();

}  // namespace freeride::worker
