#include "freeride/base/wait_set.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>

#include "freeride/base/time.hpp"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449  // the same on every architecture
#endif

namespace freeride {
namespace {

// <linux/futex.h> of newer kernels: FUTEX2_SIZE_U32 and FUTEX2_PRIVATE.
constexpr uint32_t kSize32 = 2;
constexpr uint32_t kPrivate = 128;

}  // namespace

bool WaitSet::add(const uint32_t& word, uint32_t expected, uint32_t flags, bool rings) {
  if (count_ == kMost) return false;
  entries_[count_++] = Entry{expected, reinterpret_cast<uint64_t>(&word), kSize32 | flags, 0};
  silent_ += rings ? 0 : 1;
  return true;
}

bool WaitSet::add_private(const uint32_t& word, uint32_t expected, bool rings) {
  return add(word, expected, kPrivate, rings);
}

void WaitSet::wait(int64_t deadline_ns, const uint32_t* bell) {
  if (!has_futex_waitv()) return wait_for_bell(deadline_ns, bell);
  const timespec until = as_timespec(deadline_ns);
  syscall(SYS_futex_waitv, entries_.data(), count_, 0, deadline_ns > 0 ? &until : nullptr, CLOCK_MONOTONIC);
}

void WaitSet::wait_for_bell(int64_t deadline_ns, const uint32_t* bell) const {
  static const uint32_t kNobodyRings = 0;
  const uint32_t& word = bell == nullptr ? kNobodyRings : *bell;
  // Before the words: what changes after them rings after this.
  const uint32_t seen = __atomic_load_n(&word, __ATOMIC_ACQUIRE);
  if (changed()) return;
  const bool all_ring = bell != nullptr && silent_ == 0;
  int64_t until_ns = SteadyClock::now() + (all_ring ? kMostSleepNs : kLookNs);
  if (deadline_ns > 0) until_ns = std::min(until_ns, deadline_ns);
  const timespec until = as_timespec(until_ns);
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, seen, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

bool WaitSet::changed() const {
  for (size_t i = 0; i < count_; ++i) {
    const auto* word = reinterpret_cast<const uint32_t*>(entries_[i].address);
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != static_cast<uint32_t>(entries_[i].value)) return true;
  }
  return false;
}

void wake_private(const uint32_t& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool has_futex_waitv() {
  // Without a word to wait for, a kernel that knows the call says EINVAL.
  static const bool has = syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, 0) < 0 && errno == EINVAL;
  return has;
}

}  // namespace freeride
