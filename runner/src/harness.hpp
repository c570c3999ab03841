// A worker in miniature: starts `freeride-runner supervise`, writes its lease page, reads its answer page and its
// reports. Behind `check` and the tests.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages/mapping.hpp"
#include "outcome.hpp"
#include "plugin.hpp"

namespace freeride::runner {

/// One supervised task. Not thread-safe. The destructor ends the supervisor and everything under it.
class Harness {
 public:
  struct Options {
    std::string runner;  ///< the program; empty: this one
    std::string plugin;
    std::vector<std::string> program;  ///< instead of a plugin: its name and arguments
    std::string scratch;
    std::string device = "cpu-0";
    std::string purpose = "run";
    Params params;
    uint64_t steps = 0;
    std::string predicted_pieces_ns;  ///< with commas between them; empty: not known
    int64_t create_ms = 60'000;
    int64_t stop_ms = 10'000;
    int64_t grace_ms = 100;
    int64_t hang_ms = 5'000;
    int state_in_fd = -1;  ///< a file to go on from, the caller's
    int shim_fd = -1;      ///< a shim page, the caller's
    bool deaf = false;     ///< the log goes into a pipe that nobody reads; log() is empty then
  };

  /// Blocks until the plugin's process has been started (not: until it is CREATED).
  static Result<std::unique_ptr<Harness>> start(const Options& options);
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  /// Opens the next lease, ending `length_ms` from now, and wakes runner and supervisor. Returns its id.
  uint64_t open(uint32_t kind, int64_t length_ms, uint32_t order = FREERIDE_ORDER_RUN);
  /// Ends the present lease (keeps its id on the page, kind none) under the standing order given.
  void revoke(uint32_t order = FREERIDE_ORDER_PAUSE);
  /// The lease page itself, for tests that lie on it.
  freeride_lease_page& lease_page() { return *lease_.page; }
  const pages::Lease& lease() const { return now_; }

  const freeride_answer_page& answer() const { return *answer_; }
  /// Waits until `true_of` the answer page; false when a verdict came or `most_ms` passed instead.
  bool wait_until(const std::function<bool(const freeride_answer_page&)>& true_of, int64_t most_ms = kWatchdogMs);
  bool wait_state(uint32_t state, int64_t most_ms = kWatchdogMs);
  /// Paused, with at least `steps` steps done.
  bool wait_paused(int64_t most_ms = kWatchdogMs);

  /// The verdict; nothing when none came within `most_ms`, or the supervisor ended without one.
  std::optional<Outcome> verdict(int64_t most_ms = kWatchdogMs);
  /// Lets go of the lifeline: for the supervisor, the worker is gone.
  void cut_lifeline() { lifeline_.reset(); }
  /// Waits for the supervisor's end; its wait status.
  std::optional<int> wait_gone(int64_t most_ms = kWatchdogMs);

  pid_t supervisor() const { return supervisor_; }
  pid_t task();  ///< the plugin's process, waiting for the supervisor to say which; -1 when it never does
  /// Sends a signal to exactly that process. False when there is none: an unset number never reaches kill(), where -1
  /// means everybody.
  bool signal_supervisor(int signal) const;
  bool signal_task(int signal);
  /// CPU clock of the plugin's process, ns; 0 when it is gone.
  int64_t cpu_ns();
  /// Where saved states go: a file, one after the other (saved_state.hpp).
  int state_fd() const { return state_.get(); }
  /// What the task has written so far.
  std::string log() const;

  /// A watchdog, far beyond anything that is judged.
  static constexpr int64_t kWatchdogMs = 60'000;

 private:
  Harness() = default;
  bool read_report(int64_t most_ms);
  void publish();

  pages::Created<freeride_lease_page> lease_;
  pages::Mapped<const freeride_answer_page> answer_;
  pages::Lease now_;
  Fd lifeline_;
  Fd report_;
  Fd log_;
  Fd state_;
  static constexpr pid_t kNoProcess = -1;  // never handed to kill(): there it means everybody
  pid_t supervisor_ = kNoProcess;
  pid_t task_ = kNoProcess;
  std::optional<Outcome> verdict_;
};

}  // namespace freeride::runner
