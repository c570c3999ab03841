// Draining: the device is kept empty of side tasks, and somebody is to know when it is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/shutdown.hpp"

namespace freeride::worker {

/// While it is on, tasks that are there save their state and stop, to go on elsewhere, and none is begun. Whether the
/// device is empty is looked at, not concluded: by processes and by the driver. Main thread.
class Draining {
 public:
  using Tasks = std::map<std::string, std::unique_ptr<SideTask>>;
  /// `look`: what of ours is still there, a phrase for people; empty: nothing. `stop_ns` as Shutdown's. All outlive it.
  Draining(Loop& loop, int64_t stop_ns, Replacements::Host& host, Replacements& replacements,
           std::function<std::string()> look)
      : loop_(loop), stop_ns_(stop_ns), host_(host), replacements_(replacements), look_(std::move(look)) {}

  /// What the manager's plan says (WorkerPlan::drain).
  void order(uint64_t number) { number_ = number; }
  bool on() const { return number_ != 0; }

  /// Ends what is there, and looks. Once a second, and whenever something has changed. Returns whether it found out
  /// something that is to be reported.
  bool work(const Tasks& tasks);
  /// Called for every task that has ended.
  void ended(const SideTask& task);

  /// The manager's order that has been carried out; 0: none.
  uint64_t done() const { return number_ != 0 && done_ == number_ ? number_ : 0; }
  /// What was there at the last look; empty unless it drains.
  const std::string& there() const { return there_; }

 private:
  Loop& loop_;
  const int64_t stop_ns_;
  Replacements::Host& host_;
  Replacements& replacements_;
  const std::function<std::string()> look_;
  std::unique_ptr<Shutdown> round_;  // of the tasks that were there when it began
  uint64_t number_ = 0, done_ = 0;
  std::string there_;
};

/// Child processes of this process, by name and number, for people; empty: there are none. Reads /proc.
std::string child_processes();

}  // namespace freeride::worker
