// What the manager hears of a side task's page: figures, names, and nothing that is believed beyond its bounds.
#pragma once

#include "acting/task_source.hpp"
#include "freeride/bus/commands.hpp"

namespace freeride::worker {

/// The page's counters on top of `counters`, those of the task's contents before this one. Memory is left as it is.
bus::TaskCounters counters_of(const TaskSource& pages, bus::TaskCounters counters);

}  // namespace freeride::worker
