// Enforcer: watches one plugin's process under its lease page, and kills it when a limit has been passed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "driver_watch.hpp"
#include "first_cause.hpp"
#include "freeride/pages.h"
#include "lease_watch.hpp"
#include "program.hpp"

namespace freeride::runner {

/// Waits on the lease page in a thread of its own and kills when LeaseWatch says so. Keeps what was seen of the end in
/// order of time, so it hears last words, too. Lives until its process ends: the thread is never joined, because
/// nothing can wake it for sure (the lease page's futex word is not the supervisor's to change). Any thread; nothing
/// blocks but for a lock held for microseconds.
class Enforcer {
 public:
  /// Pages and `words_fd` (the pipe of the last words, O_NONBLOCK) are the caller's, and stay for ever.
  Enforcer(pid_t pid, const freeride_lease_page& lease, const freeride_answer_page& answer, int words_fd,
           const LeaseWatch& watch);

  /// The process is a program's first: all of its processes count. Before start(); `program` stays for ever.
  void watch(Program& program) { program_ = &program; }

  /// It has the shim of libcuda: whoever goes past it is killed. Before start().
  void watch(DriverWatch driver) { driver_.emplace(std::move(driver)); }

  void start();

  /// One look at pages and clocks; kills if need be. `sequence` gets the value of the lease page's word that was judged
  /// by. Returns when to look again, or nothing when there is no more to look at.
  std::optional<int64_t> look(uint32_t& sequence);

  /// The pipe of the last words is readable. A limit that has been passed by now comes before them.
  void words_came();

  /// SIGTERM: the clock of the stop limit runs from now on.
  void stop_requested();

  /// Kills the whole group for a reason of the caller's.
  void kill(const policy::Verdict& verdict);

  /// SIGCONT to the process itself. False: it has ended.
  bool go_on();

  /// No signal is sent after this: the process has ended, its number may go to somebody else.
  void process_ended();
  /// The supervisor says how a program ended, unless the program's process has said why it never was executed.
  void program_ended(const Outcome& outcome);
  /// How it ended: `status` as from waitpid. After process_ended().
  Outcome outcome(int status);

 private:
  std::optional<int64_t> look_locked(uint32_t& sequence);
  void look_at_driver();
  void hear_locked();
  bool stop_ordered_locked() const;
  void kill_locked(const policy::Verdict& verdict);

  const pid_t pid_;
  const freeride_lease_page& lease_;
  const freeride_answer_page& answer_;
  const int words_fd_;
  Program* program_ = nullptr;
  std::optional<DriverWatch> driver_;  ///< of the enforcing thread
  std::mutex mutex_;
  LeaseWatch watch_;  ///< under mutex_, as are the next two
  FirstCause first_cause_;
  bool gone_ = false;
};

}  // namespace freeride::runner
