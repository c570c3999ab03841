// StateSaver: one save of a side task's progress, from the request to the last byte.
#pragma once

#include <functional>
#include <memory>

#include "acting/acting_thread.hpp"
#include "freeride/base/result.hpp"
#include "loop/loop.hpp"
#include "tasks/state_file.hpp"

namespace freeride::worker {

/// Main thread. The pipe that a task's runner writes its states into, one save at a time.
class StateSaver {
 public:
  using Saved = std::function<void(Status)>;
  StateSaver(Loop& loop, ActingThread& acting) : loop_(loop), acting_(acting) {}
  ~StateSaver() { stop(); }
  StateSaver(const StateSaver&) = delete;
  StateSaver& operator=(const StateSaver&) = delete;

  /// Lets the task, which is held in a pause, save into `file`, the caller's. `saved` is called once, unless stop()
  /// comes first. `pipe_fd` is open until then.
  void save(std::shared_ptr<const TaskSource> pages, int pipe_fd, StateFile& file, Saved saved);
  void stop();
  bool saving() const { return file_ != nullptr; }

 private:
  void receive();

  Loop& loop_;
  ActingThread& acting_;
  std::shared_ptr<const TaskSource> pages_;
  int pipe_fd_ = -1;
  StateReceiver receiver_;
  StateFile* file_ = nullptr;
  Saved saved_;
};

}  // namespace freeride::worker
