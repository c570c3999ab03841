// ProfileRun: one side task while it is profiled: when it is looked at, and when it has had time enough.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "acting/task_source.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/policy/verdict.hpp"
#include "loop/loop.hpp"
#include "tasks/profile_watch.hpp"
#include "tasks/task_memory.hpp"

namespace freeride::worker {

/// Main thread.
class ProfileRun {
 public:
  struct Calls {
    std::function<const TaskMemory&()> look;  ///< at its memory, now
    std::function<void()> enough;             ///< it has had its time: it is to stop. May be called again and again
  };
  /// `patience_ns`: from its initialisation on, without which a training that gives no bubbles would keep those waiting
  /// who want to load the task. `cpu_device`: there is no memory but the host's.
  ProfileRun(std::shared_ptr<const TaskSource> pages, int pipe_fd, int64_t patience_ns, bool cpu_device, Loop& loop,
             Calls calls);
  ~ProfileRun() { stop(); }
  ProfileRun(const ProfileRun&) = delete;
  ProfileRun& operator=(const ProfileRun&) = delete;

  Status start();
  /// The task is dead: takes the last of its runner's record, and lets the pipe go.
  void stop();
  /// What was measured. `verdict`: the task's.
  bus::Profile result(const TaskMemory& memory, const policy::Verdict& verdict, uint64_t wanted_steps) const;

 private:
  void look();

  std::shared_ptr<const TaskSource> pages_;
  int pipe_fd_;
  const int64_t patience_ns_;
  const bool cpu_device_;
  Loop& loop_;
  Calls calls_;
  ProfileWatch watch_;
  int64_t initialised_ns_ = 0;  // when it was first seen to be
  Loop::Timer timer_ = 0;
};

}  // namespace freeride::worker
