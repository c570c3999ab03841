// create_order: what a worker is told when it is to create a task.
#pragma once

#include "capacity.hpp"
#include "freeride/bus/commands.hpp"
#include "profile_book.hpp"
#include "task_book.hpp"
#include "workers.hpp"

namespace freeride::manager {

/// Memory limit and predicted durations are those for `worker`. Pure.
bus::CreateTask create_order(const Task& task, const Worker& worker, const Capacity& capacity,
                             const ProfileBook& profiles);

}  // namespace freeride::manager
