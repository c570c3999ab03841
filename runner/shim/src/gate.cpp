#include "gate.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <ctime>

#include "freeride/base/time.hpp"

namespace freeride::shim {
namespace {

// Most of what is waited for in the queue takes some microseconds; the rest must cost no core.
constexpr int kSpins = 64;
constexpr int64_t kSleepNs = 20 * kNsPerUs;
constexpr int64_t kBootLookNs = 100 * kNsPerMs;
// What a lease has left is watched for so long. A longer one is the probe's to find.
constexpr int64_t kMostWatchNs = kNsPerSec;
// Who pauses for kSleepNs and comes back so much later was stopped.
constexpr int64_t kStoppedNs = 2 * kNsPerMs;
constexpr int kStallFactor = 4;
// Where the queue is full, so many parts of it are told apart. Each mark costs the GPU some microseconds.
constexpr int64_t kMarks = 4;

void pause_for(int64_t ns) {
  // Without it a pause takes four times as long, and the GPU has nothing to do.
  thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1000UL);
  static_cast<void>(precise);
  const timespec length = as_timespec(ns);
  clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr);
}

void spin() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct Gate::Waiting {
  int64_t closed_since_ns = 0;  ///< 0: has not waited for a lease
  int64_t full_since_ns = 0;    ///< 0: has not waited for the queue
  int64_t moved_ns = 0;         ///< when the queue was last seen to change; 0: not waiting for it
  int64_t seen_ns = 0;          ///< the queue then
  uint64_t short_lease = 0;
  bool stalled = false;  ///< what is queued waits for something, perhaps for this submission
  int spins = 0;
};

int64_t Gate::orders_until_ns(int64_t now_ns) {
  const uint64_t until = pages::load_relaxed(lease_.orders_until_ns);
  if (until == 0) return 0;
  // The two clocks differ by what the host was suspended.
  int64_t offset_ns = boot_offset_ns_.load(std::memory_order_relaxed);
  const int64_t looked_ns = boot_looked_ns_.load(std::memory_order_acquire);
  if (looked_ns < 0 || now_ns - looked_ns > kBootLookNs || now_ns < looked_ns) {
    offset_ns = boottime_now() - SteadyClock::now();
    boot_offset_ns_.store(offset_ns, std::memory_order_relaxed);
    boot_looked_ns_.store(now_ns, std::memory_order_release);
  }
  return std::max<int64_t>(1, as_time(until) - offset_ns);
}

uint64_t Gate::next_number() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

Room Gate::room(int64_t now_ns, uint32_t& sequence) {
  // What was read under a sequence stays so until the sequence is another one.
  struct Seen {
    uint64_t gate = 0;
    uint32_t sequence = 0;
    pages::Lease lease;
  };
  static thread_local Seen seen;
  if (seen.gate != number_ || seen.sequence != pages::load_acquire(lease_.sequence)) {
    seen.gate = 0;
    if (!pages::read_lease(lease_, seen.lease, sequence)) return {};
    seen.gate = number_;
    seen.sequence = sequence;
  }
  sequence = seen.sequence;
  Room room = room_of(seen.lease, orders_until_ns(now_ns), now_ns, limits_.plugin);
  if (room.open && lease_id_.load(std::memory_order_relaxed) != room.lease_id) {
    const std::lock_guard lock(mutex_);
    if (trials_.sees(room)) {
      page_.add(&freeride_shim_page::leases);
      page_.set(&freeride_shim_page::lease_longest_ns, static_cast<uint64_t>(trials_.longest_ns()));
    }
    lease_id_.store(room.lease_id, std::memory_order_relaxed);
  }
  if (room.open) deadline_ns_.store(now_ns + room.left_ns, std::memory_order_relaxed);
  return room;
}

bool Gate::look(int64_t now_ns) {
  InFlight::Timed timed;
  const bool some = queue_.poll(now_ns, timed);
  if (timed.longest == nullptr) return some;
  page_.add(&freeride_shim_page::measured_ns, static_cast<uint64_t>(timed.sum_ns));
  if (page_.raise(&freeride_shim_page::longest_ns, static_cast<uint64_t>(timed.longest_ns)))
    page_.text(&freeride_shim_page::longest_name, name_of_(timed.longest));
  return some;
}

bool Gate::try_due(const Room& room, const Wish& wish) {
  const std::lock_guard lock(mutex_);
  return trials_.due(room, wish.expected_ns);
}

void Gate::note_too_short(const Room& room, const Wish& wish, const Cost* cost, Waiting& waiting) {
  // At the end of a lease everything is too long.
  if (wish.expected_ns < room.length_ns && room.left_ns < room.length_ns / 2) return;
  if (waiting.short_lease == 0) {
    page_.add(&freeride_shim_page::too_long);
    page_.set(&freeride_shim_page::too_long_ns, static_cast<uint64_t>(wish.expected_ns));
    page_.text(&freeride_shim_page::too_long_name, name_of_(cost));
  }
  if (waiting.short_lease == room.lease_id) return;
  waiting.short_lease = room.lease_id;
  const std::lock_guard lock(mutex_);
  trials_.too_short(room.lease_id);
}

void Gate::watch_late(uint32_t sequence) {
  if (queue_.queued_ns() == 0 || watching_.exchange(true, std::memory_order_acq_rel)) return;
  const int64_t seen_ns = clock_.now_ns();
  const int64_t end_ns = std::min(seen_ns, deadline_ns_.load(std::memory_order_relaxed));
  queue_.mark_all();
  int64_t now_ns = seen_ns;
  int64_t done_ns = 0;
  for (;;) {
    look(now_ns);
    if (queue_.queued_ns() == 0) break;
    if (now_ns - seen_ns > kMostWatchNs || pages::load_acquire(lease_.sequence) != sequence) break;
    pause_for(kSleepNs);
    done_ns = clock_.now_ns();
    if (done_ns - now_ns > kStoppedNs) {  // how long it worked meanwhile, nobody has seen
      done_ns = 0;
      break;
    }
    now_ns = done_ns;
  }
  // Done at the first look: it may have been so for long.
  if (done_ns != 0 && done_ns > end_ns) {
    const auto late_ns = static_cast<uint64_t>(done_ns - end_ns);
    page_.add(&freeride_shim_page::late);
    page_.add(&freeride_shim_page::late_ns, late_ns);
    page_.raise(&freeride_shim_page::late_most_ns, late_ns);
  }
  watching_.store(false, std::memory_order_release);
}

void Gate::wait_for_lease(const Room& room, uint32_t sequence, Waiting& waiting) {
  waiting.moved_ns = 0;
  const int64_t now_ns = clock_.now_ns();
  if (waiting.closed_since_ns == 0) {
    waiting.closed_since_ns = now_ns;
    page_.add(&freeride_shim_page::held);
  }
  if (!room.open) {
    watch_late(sequence);
    pages::futex_wait(lease_.sequence, sequence, pages::kForever, FREERIDE_WAKE_RUNNER);
  } else {
    pages::futex_wait(lease_.sequence, sequence, now_ns + room.left_ns, FREERIDE_WAKE_RUNNER);
  }
}

void Gate::wait_for_queue(Waiting& waiting, int64_t now_ns, int64_t queued_ns) {
  if (waiting.full_since_ns == 0) waiting.full_since_ns = now_ns;
  if (waiting.moved_ns == 0 || queued_ns != waiting.seen_ns) {
    waiting.moved_ns = now_ns;
    waiting.seen_ns = queued_ns;
  }
  if (look(now_ns) || queue_.mark_all()) {
    waiting.spins = 0;
    return;
  }
  if (now_ns - waiting.moved_ns > std::max(limits_.stall_ns, kStallFactor * queued_ns)) {
    queue_.stop_counting();
    page_.add(&freeride_shim_page::stalled);
    // A thread may be inside the driver with a submission that waits: that is still counted.
    waiting.stalled = true;
    waiting.moved_ns = 0;
    return;
  }
  if (++waiting.spins < kSpins) {
    spin();
  } else {
    pause_for(kSleepNs);
  }
}

// What it adds to the queue.
int64_t Gate::give_credit(const Room& room, int64_t queued_ns, const Wish& wish, Credit& credit) {
  credit.left_ns = 0;
  if (!wish.more || wish.expected_ns <= 0 || wish.expected_ns > limits_.short_ns) return 0;
  const int64_t given_ns = bound_of(room, queued_ns, wish, limits_) / kMarks;
  const Wish all{wish.expected_ns + given_ns};
  if (judge(room, queued_ns, all, false, limits_) != Passage::kPass) return 0;
  const int64_t rest_ns = room.left_ns - limits_.margin_ns - queued_ns - all.expected_ns;
  const uint64_t span_ticks = steady_ ? rate_.in(std::min(limits_.credit_span_ns, rest_ns)) : 0;
  if (span_ticks == 0) return 0;
  credit.span_ticks = static_cast<uint32_t>(std::min<uint64_t>(span_ticks, UINT32_MAX));
  credit.left_ns = static_cast<int32_t>(given_ns);
  credit.unseen_ns = limits_.short_ns;
  credit.sequence_now = &lease_.sequence;
  credit.submissions = page_.counter(&freeride_shim_page::submissions);
  return given_ns;
}

Gate::Passed Gate::pass(const Wish& wish, const Cost* cost, Credit& credit) {
  Waiting waiting;
  const int64_t weight_ns = weight_of(wish, limits_);
  for (;;) {
    credit.begin_ticks = steady_ ? ticks() : 0;  // before the clock: it ends no later than it should
    const int64_t now_ns = clock_.now_ns();
    if (steady_) rate_.note(now_ns, credit.begin_ticks);
    const Room room = this->room(now_ns, credit.sequence);
    const int64_t queued_ns = queue_.queued_ns();
    const int64_t counted_ns = waiting.stalled ? 0 : queued_ns;
    Passage passage = judge(room, counted_ns, wish, false, limits_);
    if (passage == Passage::kTooShort && try_due(room, wish)) passage = judge(room, counted_ns, wish, true, limits_);
    switch (passage) {
      case Passage::kPass:
      case Passage::kTry:
        if (!queue_.reserve(queued_ns, weight_ns + give_credit(room, queued_ns, wish, credit))) continue;
        if (passage == Passage::kTry) {
          page_.add(&freeride_shim_page::let_in);
          const std::lock_guard lock(mutex_);
          trials_.tried();
        }
        if (waiting.closed_since_ns != 0) {
          page_.add(&freeride_shim_page::waits);
          page_.add(&freeride_shim_page::waited_ns, static_cast<uint64_t>(now_ns - waiting.closed_since_ns));
        } else if (waiting.full_since_ns != 0) {
          const auto took_ns = static_cast<uint64_t>(now_ns - waiting.full_since_ns);
          page_.add(&freeride_shim_page::full);
          page_.add(&freeride_shim_page::full_ns, took_ns);
          page_.raise(&freeride_shim_page::full_most_ns, took_ns);
        }
        page_.add(&freeride_shim_page::submissions);
        return {weight_ns, bound_of(room, queued_ns, wish, limits_) / kMarks, now_ns, passage == Passage::kTry};
      case Passage::kFull:
        wait_for_queue(waiting, now_ns, queued_ns);
        break;
      case Passage::kTooShort:
        note_too_short(room, wish, cost, waiting);
        wait_for_lease(room, credit.sequence, waiting);
        break;
      case Passage::kClosed:
        wait_for_lease(room, credit.sequence, waiting);
        break;
    }
  }
}

}  // namespace freeride::shim
