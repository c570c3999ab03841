// ProgramProcesses: every process of a program: stopped and continued together, and what all of them execute.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace freeride::runner {

/// Nothing executes in a thread of this state: it is stopped or dead, or asleep in the kernel where no signal reaches
/// it ('D': a parent in vfork(), or one that waits for a disk).
bool executes_nothing(char state);

/// The processes that descend from this one, which is their reaper (adopt_descendants). In a PID namespace whose first
/// process this is, they are all that there are. Not thread-safe.
class ProgramProcesses {
 public:
  /// `alone`: this process is PID 1 of a namespace that holds nothing but the program.
  explicit ProgramProcesses(bool alone) : alone_(alone) {}

  /// Sends SIGSTOP to all of them, and looks. True: nobody runs, and nobody will. For that two looks in a row have to
  /// find everybody stopped: in the course of one, a process that has been passed over may be born of another that
  /// stops just then, or be continued by it. Call it until it says so. In a namespace of its own one signal reaches all
  /// of them at once, those that are being forked included. Reads some files of /proc for each process; does not wait.
  bool stop();
  /// Lets everything that is stopped go on.
  void go_on();
  /// SIGKILL to all of them. They are reaped by whoever waits for children.
  void kill_all();

  /// A look at the clocks. Returns how many run, or may have run a moment ago.
  int look();
  /// CPU time of all of them that any look has seen, ns. What a process executed between the last look at it and its
  /// end is not in it.
  int64_t executed_ns() const { return executed_ns_; }
  /// CPU time of all of them that there have been, ns, as of the last look: of those that have ended, too, however
  /// short they lived, to a clock tick each.
  int64_t total_ns() const { return total_ns_; }
  /// Their numbers, from a look of its own that changes nothing here.
  std::vector<pid_t> list() const;
  /// As of the last look.
  size_t count() const { return known_.size(); }

 private:
  struct Process {
    pid_t pid = 0;
    uint64_t started = 0;
    int64_t cpu_ns = 0;
    bool runs = false;
  };
  void signal_all(int signal);

  const bool alone_;
  std::vector<Process> known_;  ///< by number
  int64_t executed_ns_ = 0, total_ns_ = 0;
};

}  // namespace freeride::runner
