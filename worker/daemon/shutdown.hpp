// Shutdown: the end of a worker in good order.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "freeride/base/result.hpp"
#include "loop/loop.hpp"
#include "tasks/replacements.hpp"
#include "tasks/side_task.hpp"
#include "tasks/state_file.hpp"

namespace freeride::worker {

/// Its tasks save their progress, those that can, and stop; where they are placed again on this host they go on from
/// there. One after the other, each within its share of the time that is left: whoever does not come to an end takes
/// nobody else's. Main thread.
class Shutdown {
 public:
  ~Shutdown() { loop_.cancel(timer_); }
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;
  /// `stop_ns`: for all of it; a third of it for saving. All outlive it.
  Shutdown(Loop& loop, int64_t stop_ns, Replacements::Host& host, Replacements& replacements)
      : loop_(loop), stop_ns_(stop_ns), host_(host), replacements_(replacements) {}

  /// Once, with all tasks by name.
  void begin(const std::map<std::string, std::unique_ptr<SideTask>>& tasks);
  bool begun() const { return begun_; }
  /// Some are still held, to be saved.
  bool busy() const { return !saving_.empty() || !waiting_.empty(); }
  /// One that ended while it saved has no more need of its time.
  void ended(const SideTask& task) { saved(task.spec().task, Error{Code::kUnavailable, "it has ended", ""}); }

 private:
  bool can_save(const SideTask& task) const;
  void save_next();
  void save(SideTask& task);
  void saved(const std::string& name, const Status& saved);
  void stop(SideTask& task);

  Loop& loop_;
  const int64_t stop_ns_;
  Replacements::Host& host_;
  Replacements& replacements_;
  bool begun_ = false;
  int64_t until_ns_ = 0;              // for all saving
  std::deque<std::string> waiting_;   // names of tasks that are held, to be saved
  std::string saving_;                // whose state is being saved; empty: nobody's
  std::unique_ptr<StateFile> state_;  // its file
  Loop::Timer timer_ = 0;
};

}  // namespace freeride::worker
