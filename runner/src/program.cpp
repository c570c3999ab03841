#include "program.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <string>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/starvation.hpp"
#include "freeride/base/time.hpp"
#include "freeride/pages/shim_report.hpp"
#include "saved_state.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::VerdictKind;

// Stopping is expected to take what it took lately, but a supervisor that once had no core for long is no reason to
// end every lease so early.
constexpr int64_t kMostMarginNs = 2 * kNsPerMs;
constexpr int64_t kMarginDecay = 8;

// Between two looks whether all have stopped: at first what a signal takes, then longer.
constexpr int64_t kFirstHaltLookNs = 50'000, kLastHaltLookNs = 5 * kNsPerMs;

// Processes that are stopped are not looked at more often.
constexpr int64_t kIdleLookNs = 100 * kNsPerMs;

// Some clock ticks.
constexpr int64_t kMostLeftNs = 20 * kNsPerMs;

// While the program is being executed, the lease page is looked at so often.
constexpr int kExecLookMs = 2;

void sleep_for(int64_t ns) {
  const timespec pause = as_timespec(ns);
  nanosleep(&pause, nullptr);
}

bool for_steps(uint32_t kind) {
  return kind == FREERIDE_LEASE_BUBBLE || kind == FREERIDE_LEASE_IDLE;
}

}  // namespace

std::optional<Outcome> program_outcome(int status, bool ordered) {
  Outcome outcome;
  policy::Verdict& verdict = outcome.verdict;
  std::string how;
  if (WIFEXITED(status)) {
    verdict.exit_code = WEXITSTATUS(status);
    how = "exited with code " + std::to_string(verdict.exit_code);
  } else {
    verdict.signal = WTERMSIG(status);
    const char* name = sigabbrev_np(verdict.signal);
    how = "ended by signal " + std::to_string(verdict.signal) +
          (name == nullptr ? "" : std::string(" (SIG") + name + ")");
  }
  if (ordered) {
    verdict.kind = VerdictKind::kStopped;
    verdict.cause = Cause::kOrder;
    verdict.message = "stopped: it " + how;
    return outcome;
  }
  if (verdict.exit_code < 0) return std::nullopt;
  const bool good = verdict.exit_code == 0;
  verdict.kind = good ? VerdictKind::kFinished : VerdictKind::kFailed;
  verdict.cause = good ? Cause::kDone : Cause::kExit;
  verdict.message = how;
  return outcome;
}

int64_t executed_late_ns(const LateNotice& notice) {
  const int64_t late_ns = std::max<int64_t>(0, notice.late_ns - std::max<int64_t>(0, notice.starved_ns));
  const int64_t most_ns = late_ns > INT64_MAX / notice.cores ? INT64_MAX : late_ns * notice.cores;
  return std::clamp<int64_t>(notice.executed_ns, 0, most_ns);
}

Program::Seen Program::read() const {
  Seen seen;
  seen.readable = pages::read_lease(links_.lease, seen.lease, seen.sequence);
  if (!seen.readable) seen.sequence = pages::load_acquire(links_.lease.sequence);
  // Orders that expire end the lease. Their clock goes on while the host is suspended.
  const uint64_t orders_ns = pages::load_relaxed(links_.lease.orders_until_ns);
  if (orders_ns != 0) {
    const int64_t until_ns = as_time(orders_ns) - (boottime_now() - SteadyClock::now());
    if (until_ns < as_time(seen.lease.deadline_ns))
      seen.lease.deadline_ns = static_cast<uint64_t>(std::max<int64_t>(0, until_ns));
  }
  return seen;
}

Program::Right Program::right_of(const Seen& seen, int64_t now_ns) const {
  const pages::Lease& lease = seen.lease;
  if (!seen.readable || lease.lease_id == 0 || as_time(lease.deadline_ns) <= now_ns) return Right::kNone;
  if (lease.order == FREERIDE_ORDER_STOP) return Right::kNone;
  if (at_gate_) return lease.kind == FREERIDE_LEASE_INIT ? Right::kInit : Right::kNone;
  if (lease.kind == FREERIDE_LEASE_SAVE) return Right::kSave;
  return for_steps(lease.kind) && lease.order == FREERIDE_ORDER_RUN ? Right::kSteps : Right::kNone;
}

void Program::run() {
  await_child();
  answer_.created(SteadyClock::now() - started_ns_);
  answer_.set_state(FREERIDE_STATE_CREATED);
  for (;;) {
    const Seen seen = read();
    obey(seen);
    if (told_kill_ || !act(seen))
      pages::futex_wait(links_.lease.sequence, seen.sequence, pages::kForever, FREERIDE_WAKE_RUNNER);
  }
}

// The child is set up and stands at its gate. One that has failed before that has said why in its last words.
void Program::await_child() {
  answer_.enter(FREERIDE_IN_LOAD, started_ns_);
  char ready = 0;
  ssize_t got = 0;
  while ((got = ::read(links_.gate_fd, &ready, 1)) < 0 && errno == EINTR) {
  }
  if (got == 1) return;
  for (;;) pause();  // until the waiting thread has seen its end
}

void Program::obey(const Seen& seen) {
  if (!seen.readable) return;
  const uint32_t order = seen.lease.order;
  if (order == FREERIDE_ORDER_STOP && !told_kill_) {
    told_kill_ = true;
    answer_.enter(FREERIDE_IN_STOP, SteadyClock::now());
    stop_now();
  }
  if (order == FREERIDE_ORDER_END && !told_term_ && !at_gate_) {
    told_term_ = true;
    ending_.store(true);
    const std::lock_guard lock(mutex_);
    if (!gone_) ::kill(links_.pid, SIGTERM);  // it is delivered when it goes on
  }
}

void Program::process_ended() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
}

void Program::stop_now() {
  ending_.store(true);
  const std::lock_guard lock(mutex_);
  processes_.kill_all();
}

// False: there is nothing to do before the page changes.
bool Program::act(const Seen& seen) {
  const int64_t now_ns = SteadyClock::now();
  const Right right = right_of(seen, now_ns);
  const uint64_t id = seen.lease.lease_id;
  if (right == Right::kNone || id == last_lease_) return false;
  last_lease_ = id;
  if (right == Right::kSave && seen.lease.order != FREERIDE_ORDER_END) {
    answer_save(seen);
    return true;
  }
  if (right == Right::kSteps && as_time(seen.lease.deadline_ns) - now_ns <= margin_ns_) {
    margin_ns_ -= margin_ns_ / kMarginDecay;
    answer_.works_under(id);
    answer_.skipped();
    answer_.wake();
    return true;
  }
  execute(seen, right);
  return true;
}

// It is to go on elsewhere, or later. A program keeps no state of which anybody here knows.
void Program::answer_save(const Seen& seen) {
  SavedState saved;
  saved.lease_id = seen.lease.lease_id;
  saved.steps = answer_.steps();
  if (links_.state_fd >= 0) write_saved_state(links_.state_fd, saved);
  answer_.saved(saved.lease_id);
  answer_.wake();
}

void Program::execute(Seen held, Right right) {
  const int64_t begin_ns = SteadyClock::now();
  answer_.works_under(held.lease.lease_id);
  if (right == Right::kInit) {
    answer_.enter(FREERIDE_IN_INIT, begin_ns);
    at_gate_ = false;
    const char go = 1;
    [[maybe_unused]] const ssize_t sent = write(links_.gate_fd, &go, 1);
  } else if (right == Right::kSave) {
    answer_.enter(FREERIDE_IN_SAVE, begin_ns);
  } else {
    answer_.first_step(begin_ns);
    answer_.step_goes_on(begin_ns);
    answer_.wake();
  }
  go_on(begin_ns);
  const int64_t ended_ns = wait_for_end(held, right);
  answer_.sees_end(SteadyClock::now());
  halt(ended_ns);
  const int64_t paused_ns = SteadyClock::now();
  answer_.paused(paused_ns);
  if (right == Right::kSave) {
    answer_.saved(held.lease.lease_id);
    answer_.leave();
    answer_.wake();
    return;
  }
  if (right == Right::kInit) {
    answer_.initialised(paused_ns - begin_ns);
  } else {
    count_step(paused_ns - begin_ns, std::max<int64_t>(0, std::min(paused_ns, ended_ns) - begin_ns));
  }
  answer_.set_state(FREERIDE_STATE_PAUSED);
}

// What sleeps has done nothing with its lease. Clocks of ended processes are of ticks, so some is left for later steps;
// but what several cores executed at once pays for no sleep.
void Program::count_step(int64_t wall_ns, int64_t within_lease_ns) {
  if (links_.by_cpu_clock) {
    const std::lock_guard lock(mutex_);
    not_counted_ns_ = std::min(not_counted_ns_, kMostLeftNs) + processes_.total_ns() - total_at_begin_ns_;
    wall_ns = std::min(wall_ns, not_counted_ns_);
    not_counted_ns_ -= wall_ns;
  }
  answer_.count_piece(wall_ns, std::min(within_lease_ns, wall_ns));
  answer_.count_step();
}

// Returns when the lease ended or ends: the deadline, or sooner where it was taken back. Of an init lease: once what it
// is for is over.
int64_t Program::wait_for_end(Seen& held, Right right) {
  for (;;) {
    const int64_t deadline_ns = as_time(held.lease.deadline_ns);
    const int64_t until_ns = deadline_ns - margin_ns_;
    if (SteadyClock::now() >= until_ns) return deadline_ns;
    if (right == Right::kInit) {
      if (start_is_over()) return deadline_ns;
    } else {
      pages::futex_wait(links_.lease.sequence, held.sequence, until_ns, FREERIDE_WAKE_RUNNER);
    }
    const Seen seen = read();
    obey(seen);
    const int64_t now_ns = SteadyClock::now();
    const bool same = right == Right::kInit ? seen.readable && seen.lease.kind == FREERIDE_LEASE_INIT &&
                                                  as_time(seen.lease.deadline_ns) > now_ns
                                            : right_of(seen, now_ns) == right;
    if (!same || told_kill_) {
      // Whoever takes a lease back writes down when.
      const int64_t written_ns = as_time(seen.lease.deadline_ns);
      const bool when =
          seen.readable && seen.lease.kind == FREERIDE_LEASE_NONE && written_ns >= as_time(held.lease.opened_ns);
      return std::min({deadline_ns, now_ns, when ? written_ns : now_ns});
    }
    if (seen.lease.lease_id != held.lease.lease_id) answer_.works_under(seen.lease.lease_id);
    last_lease_ = seen.lease.lease_id;
    held = seen;
  }
}

// The pipe of the last words closes on exec, and with a process that ends.
bool Program::exec_is_over(int most_ms) const {
  pollfd words{links_.words_fd, 0, 0};
  return poll(&words, 1, most_ms) == 1;
}

// On a CPU nothing of a program is done beside training but its execution. What has the shim does nothing on the GPU
// under an init lease, so the host's part of its start (imports, reading a model) is done there: until it asks for the
// GPU. One that never does, or whose page lies, has no more of it than a plugin: until the lease's end. Looks every few
// milliseconds.
bool Program::start_is_over() const {
  if (!exec_is_over(kExecLookMs)) return false;
  if (links_.shim_fd < 0) return true;
  const auto report = pages::read_shim_page(links_.shim_fd);
  if (!report.ok() || report->held > 0) return true;
  sleep_for(kExecLookMs * kNsPerMs);
  return false;
}

void Program::go_on(int64_t now_ns) {
  starved_at_begin_ns_ = starvation_of(getpid()).waited_ns;
  const std::lock_guard lock(mutex_);
  // What it has executed since it was stopped is not of this lease.
  if (stopped_ && now_ns - looked_ns_ > kIdleLookNs) {
    const int64_t before_ns = processes_.executed_ns();
    processes_.look();
    note_outside(processes_.executed_ns() - before_ns);
  }
  executed_at_begin_ns_ = processes_.executed_ns();
  total_at_begin_ns_ = processes_.total_ns();
  stopped_ = false;
  processes_.go_on();
}

void Program::halt(int64_t ended_ns) {
  const int64_t notice_ns = SteadyClock::now();
  bool first = true;
  for (int64_t pause_ns = kFirstHaltLookNs;; pause_ns = std::min(pause_ns * 2, kLastHaltLookNs)) {
    {
      const std::lock_guard lock(mutex_);
      const int64_t before_ns = first ? executed_at_begin_ns_ : processes_.executed_ns();
      stopped_ = processes_.stop();
      int64_t executed_ns = processes_.executed_ns() - before_ns;
      if (std::exchange(first, false)) {
        const int64_t starved_ns = starvation_of(getpid()).waited_ns - starved_at_begin_ns_;
        executed_ns = executed_late_ns({executed_ns, SteadyClock::now() - ended_ns, starved_ns, links_.cores});
      }
      note_outside(executed_ns);
      looked_ns_ = SteadyClock::now();
      if (stopped_) break;
    }
    obey(read());
    sleep_for(pause_ns);
  }
  const int64_t took_ns = SteadyClock::now() - notice_ns;
  margin_ns_ = std::min(kMostMarginNs, std::max(took_ns, margin_ns_ - margin_ns_ / kMarginDecay));
}

void Program::note_outside(int64_t executed_ns) {
  outside_ns_ += executed_ns;
  answer_.paused_cpu(outside_ns_);
}

std::vector<pid_t> Program::processes() {
  const std::lock_guard lock(mutex_);
  return processes_.list();
}

int64_t Program::executed_outside_ns() {
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = SteadyClock::now();
  if (!stopped_ || now_ns - looked_ns_ < kIdleLookNs) return outside_ns_;
  looked_ns_ = now_ns;
  const int64_t before_ns = processes_.executed_ns();
  if (processes_.look() != 0) processes_.stop();
  note_outside(processes_.executed_ns() - before_ns);
  return outside_ns_;
}

}  // namespace freeride::runner
