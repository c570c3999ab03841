#include "enforcer.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "freeride/base/starvation.hpp"
#include "freeride/base/time.hpp"
#include "freeride/pages/mapping.hpp"
#include "last_words.hpp"

namespace freeride::runner {
namespace {

constexpr int64_t kDriverLookNs = kNsPerSec;

// Execution that went on until this look: words that nobody has heard by now came during it, or after it.
bool executes(const policy::Verdict& kill) {
  return kill.cause == policy::Cause::kLeaseEnd || kill.cause == policy::Cause::kUnleased;
}

}  // namespace

Enforcer::Enforcer(pid_t pid, const freeride_lease_page& lease, const freeride_answer_page& answer, int words_fd,
                   const LeaseWatch& watch)
    : pid_(pid), lease_(lease), answer_(answer), words_fd_(words_fd), watch_(watch) {}

void Enforcer::start() {
  std::thread([this] {
    uint32_t sequence = 0;
    while (const auto look_at_ns = look(sequence)) {
      int64_t until_ns = *look_at_ns == INT64_MAX ? pages::kForever : *look_at_ns;
      if (driver_) {
        look_at_driver();
        const int64_t next_ns = SteadyClock::now() + kDriverLookNs;
        until_ns = until_ns == pages::kForever ? next_ns : std::min(until_ns, next_ns);
      }
      pages::futex_wait(lease_.sequence, sequence, until_ns, FREERIDE_WAKE_SUPERVISOR);
    }
  }).detach();
}

std::optional<int64_t> Enforcer::look(uint32_t& sequence) {
  const std::lock_guard lock(mutex_);
  return look_locked(sequence);
}

std::optional<int64_t> Enforcer::look_locked(uint32_t& sequence) {
  if (gone_ || first_cause_.was_killed()) return std::nullopt;
  Look look;
  look.readable = pages::read_lease(lease_, look.lease, look.sequence);
  if (!look.readable) look.sequence = pages::load_acquire(lease_.sequence);
  sequence = look.sequence;
  look.transition = pages::load_acquire(answer_.transition);
  look.state = pages::load_acquire(answer_.state);
  look.last_paused_ns = static_cast<int64_t>(pages::load_relaxed(answer_.last_paused_ns));
  look.cpu_ns = program_ != nullptr ? program_->executed_outside_ns() : std::max<int64_t>(0, process_cpu_ns(pid_));
  look.now_ns = SteadyClock::now();
  const int64_t suspended_ns = boottime_now() - look.now_ns;
  const auto on_our_clock = [&](uint64_t boottime_ns) -> int64_t {
    if (boottime_ns == 0) return 0;
    return std::max<int64_t>(1, static_cast<int64_t>(boottime_ns) - suspended_ns);
  };
  look.orders_until_ns = on_our_clock(pages::load_relaxed(lease_.orders_until_ns));
  look.orders_end_ns = on_our_clock(pages::load_relaxed(lease_.orders_end_ns));
  if (look.state == FREERIDE_STATE_RUNNING || look.transition != FREERIDE_IN_NONE)
    look.starvation = starvation_of(program_ != nullptr ? getpid() : pid_);  // of who is to pause it
  const WatchDecision decision = watch_.look(look);
  if (!decision.kill) return decision.look_at_ns;
  // What does not pause, or is slow, may be a process that has said why it ends and is on its way out.
  if (!executes(*decision.kill)) hear_locked();
  kill_locked(*decision.kill);
  return std::nullopt;
}

// Without the lock: it takes longer than all else.
void Enforcer::look_at_driver() {
  const auto found =
      driver_->look(program_ != nullptr ? program_->processes() : std::vector<pid_t>{pid_}, SteadyClock::now());
  if (found) kill({policy::VerdictKind::kFailed, policy::Cause::kLimits, *found});
}

void Enforcer::words_came() {
  const std::lock_guard lock(mutex_);
  uint32_t sequence = 0;
  look_locked(sequence);
  hear_locked();
}

void Enforcer::stop_requested() {
  const std::lock_guard lock(mutex_);
  watch_.stop_requested(SteadyClock::now());
}

void Enforcer::kill(const policy::Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  if (gone_ || first_cause_.was_killed()) return;
  hear_locked();
  kill_locked(verdict);
}

bool Enforcer::go_on() {
  const std::lock_guard lock(mutex_);
  return !gone_ && ::kill(pid_, SIGCONT) == 0;
}

void Enforcer::process_ended() {
  const std::lock_guard lock(mutex_);
  gone_ = true;
  hear_locked();
}

void Enforcer::program_ended(const Outcome& outcome) {
  const std::lock_guard lock(mutex_);
  if (!first_cause_.has_said()) first_cause_.said(outcome);
}

Outcome Enforcer::outcome(int status) {
  const std::lock_guard lock(mutex_);
  return first_cause_.ended(status, pages::load_acquire(answer_.transition));
}

// The page may be newer than the last look.
bool Enforcer::stop_ordered_locked() const {
  pages::Lease lease;
  uint32_t sequence = 0;
  return watch_.stop_ordered() || (pages::read_lease(lease_, lease, sequence) && lease.order == FREERIDE_ORDER_STOP);
}

void Enforcer::hear_locked() {
  if (first_cause_.has_said()) return;
  auto words = read_last_words(words_fd_);
  if (!words) return;
  if (words->verdict.kind == policy::VerdictKind::kStopped && !stop_ordered_locked())
    policy::doubt_stop(words->verdict);
  first_cause_.said(*words);
}

void Enforcer::kill_locked(const policy::Verdict& verdict) {
  first_cause_.killed(verdict);
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);  // before its setsid(), it leads no group yet
}

}  // namespace freeride::runner
