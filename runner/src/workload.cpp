#include "workload.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"
#include "freeride/base/wait_set.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::runner {
namespace {

uint32_t& word(std::atomic<uint32_t>& value) {
  static_assert(sizeof(value) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  return reinterpret_cast<uint32_t&>(value);
}

void wake(std::atomic<uint32_t>& value) {
  syscall(SYS_futex, &word(value), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void sleep_while(std::atomic<uint32_t>& value, uint32_t expected, const timespec* until) {
  syscall(SYS_futex, &word(value), FUTEX_WAIT_BITSET, expected, until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

freeride_status Workload::prepare(const std::function<freeride_status()>& prepare,
                                  const std::function<freeride_status()>& body) {
  started_.store(true);
  gate_.store(kOpen);
  thread_ = std::thread([this, prepare, body] {
    id_.store(std::this_thread::get_id());
    piece_begins();
    const freeride_status status = prepared_status_ = prepare();
    gate_.store(kClosed);
    prepared_.store(1);
    wake(prepared_);
    if (status == FREERIDE_OK) {
      status_ = begin_piece();
      if (status_ == FREERIDE_OK) status_ = body();
    }
    end();
  });
  while (prepared_.load() == 0) sleep_while(prepared_, 0, nullptr);
  if (prepared_status_ != FREERIDE_OK) thread_.join();
  return prepared_status_;
}

void Workload::end() {
  ended_.store(1);
  wake(ended_);
  comes_to_gate();
}

void Workload::comes_to_gate() {
  at_gate_.store(1);
  wake(at_gate_);
  // Without futex_waitv, wait() sleeps on the lease's word. If it is about to, it sees this a moment later.
  const uint32_t* lease = has_futex_waitv() ? nullptr : lease_sequence_.load();
  if (lease != nullptr) pages::futex_wake(*lease, FREERIDE_WAKE_RUNNER);
}

void Workload::open(const std::function<freeride_status()>& body, bool once) {
  at_gate_.store(0);  // it may be a while until the thread says so itself
  ++openings_;
  gate_.store(once ? kOnce : kOpen);
  wake(gate_);
  if (started_.exchange(true)) return;
  thread_ = std::thread([this, body] {
    id_.store(std::this_thread::get_id());
    piece_begins();
    status_ = body();
    end();
  });
}

void Workload::close(int64_t until_ns) {
  for (uint32_t open : {kOpen, kOnce}) gate_.compare_exchange_strong(open, kClosed);
  const timespec until = as_timespec(until_ns);
  while (at_gate_.load() == 0 && SteadyClock::now() < until_ns) sleep_while(at_gate_, 0, &until);
}

void Workload::abandon(int64_t most_ms) {
  gate_.store(kAbandoned);
  wake(gate_);
  const int64_t until_ns = SteadyClock::now() + most_ms * kNsPerMs;
  const timespec until = as_timespec(until_ns);
  while (started_ && !ended() && SteadyClock::now() < until_ns) sleep_while(ended_, 0, &until);
  if (!thread_.joinable()) return;
  if (ended()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

freeride_status Workload::wait_at_gate() {
  ++arrivals_;
  for (;;) {
    uint32_t gate = gate_.load();
    if (gate == kOnce) {
      at_gate_.store(0);  // before the gate is closed: waits() is about the next time it comes here
      if (gate_.compare_exchange_strong(gate, kClosed)) return FREERIDE_OK;
      continue;
    }
    if (gate != kClosed) {
      at_gate_.store(0);
      return gate == kOpen ? FREERIDE_OK : FREERIDE_ABANDONED;
    }
    comes_to_gate();
    sleep_while(gate_, kClosed, nullptr);
  }
}

void Workload::goes_on(int64_t now_ns) {
  if (const int64_t since_ns = std::exchange(stands_since_ns_, 0); since_ns != 0) stood_ns_ += now_ns - since_ns;
}

freeride_status Workload::pass() {
  admission_.step_done(piece_ends());
  return begin_piece();
}

freeride_status Workload::pass_piece() {
  piece_done();
  return begin_piece();
}

freeride_status Workload::pass_queued(const Host::Wait& wait) {
  if (admission_.take_ahead()) {
    if (const auto status = wait(false); status != FREERIDE_OK) return status;
    piece_done();
    admission_.is_behind();
  }
  if (gate_.load() == kOpen && admission_.may_queue(SteadyClock::now(), open_until_ns_.load())) {
    admission_.queued();
    return FREERIDE_OK;
  }
  if (const auto status = wait(true); status != FREERIDE_OK) return status;
  return pass_piece();
}

// Until the gate is open and the next piece may begin.
freeride_status Workload::begin_piece() {
  for (;;) {
    if (const auto status = wait_at_gate(); status != FREERIDE_OK) return status;
    const int64_t until_ns = open_until_ns_.load();
    const uint64_t lease = lease_id_.load();
    const auto passes = admission_.may_pass(SteadyClock::now(), until_ns, lease != worked_lease_);
    if (passes != Admission::Pass::kNo) {
      cut_.store(passes == Admission::Pass::kCut);
      worked_lease_ = lease;
      piece_begins();
      return FREERIDE_OK;
    }
    uint32_t open = kOpen;
    gate_.compare_exchange_strong(open, kClosed);  // the main thread sees that it waits, and pauses
  }
}

void Workload::piece_begins() {
  piece_begin_ns_ = SteadyClock::now();
  piece_stood_ns_ = stood_ns_.load();
  piece_opening_ = openings_.load();
}

// The present piece ends, the next one may be executing. Returns what it took, without the time in which it stood.
int64_t Workload::piece_ends() {
  if (piece_opening_ != openings_.load()) worked_lease_ = lease_id_.load();  // its rest was this lease's first
  const int64_t began_ns = piece_begin_ns_, stood_ns = piece_stood_ns_;
  piece_begins();
  return std::max<int64_t>(0, piece_begin_ns_ - began_ns - (piece_stood_ns_ - stood_ns));
}

void Workload::piece_done() {
  admission_.piece_done(piece_ends());
}

void Workload::wait(const uint32_t& lease_sequence, uint32_t expected, int64_t until_ns) {
  lease_sequence_.store(&lease_sequence);
  WaitSet waits;
  waits.add_shared(lease_sequence, expected, true);
  waits.add_shared(word(at_gate_), 0);
  waits.add_shared(word(ended_), 0);
  waits.wait(std::max<int64_t>(1, until_ns), &lease_sequence);  // 0 would be no end
}

}  // namespace freeride::runner
