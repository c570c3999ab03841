// Replacement: a task on its way from one content of its plugin to another.
#pragma once

#include <memory>
#include <string>

#include "freeride/bus/commands.hpp"
#include "loop/loop.hpp"
#include "tasks/side_task.hpp"
#include "tasks/state_file.hpp"

namespace freeride::worker {

/// One replacement under way. In kCreating to kStopping the task is the old content and `next` the new one; from
/// kStarting on the task is the new one.
struct Replacement {
  enum class Phase { kCreating, kSaving, kStopping, kStarting };
  uint64_t revision = 0;
  Phase phase = Phase::kCreating;
  bus::CreateTask old_spec;
  std::unique_ptr<SideTask> next;
  std::unique_ptr<StateFile> file;
  bus::TaskCounters counters;  // of the old one, at its end
  std::string order = "run";   // what the user wants, from kStopping on
  bool stop_wanted = false;    // the user's, while the old one stops anyway
  Loop* loop = nullptr;
  Loop::Timer timer = 0;
  ~Replacement() { loop->cancel(timer); }
  const char* state() const {
    static constexpr const char* kNames[] = {"creating", "saving", "stopping", "starting"};
    return kNames[static_cast<int>(phase)];
  }
};

}  // namespace freeride::worker
