// Shutdown: the end of a worker in good order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "freeride/base/result.hpp"
#include "loop/loop.hpp"
#include "tasks/side_task.hpp"
#include "tasks/state_file.hpp"

namespace freeride::worker {

/// Its tasks save their progress, those that can, and stop; where they are placed again on this host they go on from
/// there. Main thread.
class Shutdown {
 public:
  struct Calls {
    std::function<bool(const SideTask&)> replaced;  ///< it is being replaced: has saved its state, or will not any more
    std::function<Status(SideTask&)> stop;          ///< orders it to stop
    std::function<SideTask*(uint64_t id)> find;     ///< null: there is none any more
    std::function<std::filesystem::path(const std::string& task)> folder;
  };
  /// `stop_ns`: for all of it; a third of it for saving.
  Shutdown(Loop& loop, int64_t stop_ns, Calls calls) : loop_(loop), stop_ns_(stop_ns), calls_(std::move(calls)) {}

  /// Once, with all tasks by name.
  void begin(const std::map<std::string, std::unique_ptr<SideTask>>& tasks);
  bool begun() const { return begun_; }

 private:
  bool can_save(const SideTask& task) const;
  void save(SideTask& task);
  void saved(uint64_t id, const Status& saved);
  void stop(SideTask& task);

  Loop& loop_;
  const int64_t stop_ns_;
  const Calls calls_;
  bool begun_ = false;
  std::map<uint64_t, std::unique_ptr<StateFile>> states_;  // by task, being saved before it stops
};

}  // namespace freeride::worker
