// Program: an ordinary program as a side task: its processes execute under leases, and are all stopped in between.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "answer.hpp"
#include "freeride/pages.h"
#include "freeride/pages/mapping.hpp"
#include "outcome.hpp"
#include "program_processes.hpp"

namespace freeride::runner {

/// How a program ended. `status` as from waitpid; `ordered`: somebody had told it to. Nothing where it was killed by a
/// signal that nobody of ours has sent: FirstCause names it. Pure.
std::optional<Outcome> program_outcome(int status, bool ordered);

/// A lease's end for the program's clocks. Pure.
struct LateNotice {
  int64_t executed_ns = 0;  ///< CPU time of all processes between the lease's begin and the notice of its end
  int64_t late_ns = 0;      ///< wall time from the lease's end to that notice
  int64_t starved_ns = 0;   ///< what the supervisor itself waited for a core in the meantime
  uint32_t cores = 1;
};
/// At most how much of it was executed past the end: while the supervisor had no core, neither had the program, which
/// has the same weight.
int64_t executed_late_ns(const LateNotice& notice);

/// The supervisor's part that a plugin's runner has: follows the lease page, writes the answer page, stops and
/// continues the processes. The program has neither page nor descriptor, so what the answer page says is the
/// supervisor's word. `last_paused_cpu_ns` there is what the processes have executed outside of leases.
class Program {
 public:
  /// All are the caller's and stay for ever. `gate_fd`: the socket of wait_at_gate(). `words_fd`: the pipe of its last
  /// words, whose end means that the program has been executed. `state_fd`: for saved states; -1: none.
  struct Links {
    const freeride_lease_page& lease;
    freeride_answer_page& answer;
    pid_t pid = 0;  ///< of the program's first process
    int gate_fd = -1, words_fd = -1, state_fd = -1;
    int shim_fd = -1;  ///< its shim page; -1: it has none
    uint32_t cores = 1;
    bool by_cpu_clock = true;  ///< its steps are what it executes, not how long its leases were
  };
  /// `alone`: see ProgramProcesses.
  Program(const Links& links, bool alone, int64_t started_ns)
      : links_(links), answer_(links.answer), started_ns_(started_ns), processes_(alone) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Until the process ends: it is the caller's main thread, so that starvation_of() tells of this. Never returns.
  [[noreturn]] void run();

  /// It is to end: by the lease page (an order to end or to stop), or by stop_now(). Any thread.
  bool ending() const { return ending_.load(); }
  /// Kills all of its processes, by an order that is not on the lease page. Any thread.
  void stop_now();

  /// Its first process has ended, and its number may go to somebody else: no signal is sent to that any more.
  void process_ended();

  /// What its processes have executed outside of leases, ns. While they are stopped, looks whether they are: one that
  /// has arranged to go on is stopped again, and has executed. Any thread; reads files of /proc.
  int64_t executed_outside_ns();

  /// All of its processes. Any thread; reads files of /proc.
  std::vector<pid_t> processes();

 private:
  struct Seen {
    pages::Lease lease;
    uint32_t sequence = 0;
    bool readable = false;
  };
  enum class Right { kNone, kInit, kSteps, kSave };
  Seen read() const;
  Right right_of(const Seen& seen, int64_t now_ns) const;
  void await_child();
  void obey(const Seen& seen);
  bool act(const Seen& seen);
  void answer_save(const Seen& seen);
  void execute(Seen held, Right right);
  int64_t wait_for_end(Seen& held, Right right);
  bool exec_is_over(int most_ms) const;
  bool start_is_over() const;
  void go_on(int64_t now_ns);
  void halt(int64_t ended_ns);
  void note_outside(int64_t executed_ns);
  void count_step(int64_t wall_ns, int64_t within_lease_ns);

  const Links links_;
  Answer answer_;
  const int64_t started_ns_;
  std::mutex mutex_;   ///< of the next seven
  bool gone_ = false;  ///< its first process
  ProgramProcesses processes_;
  bool stopped_ = false;  ///< all of them, as the last look has seen
  int64_t looked_ns_ = 0;
  int64_t outside_ns_ = 0;
  int64_t executed_at_begin_ns_ = 0;  ///< of the lease
  int64_t total_at_begin_ns_ = 0;
  std::atomic<bool> ending_{false};
  bool at_gate_ = true, told_term_ = false, told_kill_ = false;
  int64_t starved_at_begin_ns_ = 0;
  int64_t not_counted_ns_ = 0;  ///< executed under leases, and in no step yet
  int64_t margin_ns_ = 0;       ///< what stopping takes
  uint64_t last_lease_ = 0;     ///< that was used, or was too short
};

}  // namespace freeride::runner
