// Credit: what a thread may submit to a stream without asking at the gate again. Much of what a launch costs at the
// gate is the question what time it is, and the driver's answer which context is current.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace freeride::shim {

/// The processor's own counter of time, in its units; 0: none is known for this processor. Cheaper than the clock.
/// Any thread.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t count = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
#else
  return 0;
#endif
}

/// Does the counter run at one rate, on all cores, whatever they do?
bool ticks_are_steady();

/// How many ticks there are in a time, learned from the clock and learned anew each second. Who was stopped between a
/// look at the counter and one at the clock, or suspended, would learn a wrong rate: so two windows in a row have to
/// agree to a hundredth, else none is known. Any thread; lock-free.
class TickRate {
 public:
  /// It was `now_ns` at `ticks`.
  void note(int64_t now_ns, uint64_t ticks);
  /// Ticks in `ns`; 0: not known.
  uint64_t in(int64_t ns) const {
    return static_cast<uint64_t>(static_cast<double>(ns) * per_ns_.load(std::memory_order_relaxed));
  }

 private:
  std::atomic<bool> noting_{false};
  int64_t begin_ns_ = 0;  ///< under noting_, as the next two
  uint64_t begin_ticks_ = 0;
  double last_ = 0;  ///< of the last window
  std::atomic<double> per_ns_{0};
};

/// A part of the queue's room. It counts as queued from when it is given; what is left of it is taken back at the next
/// passage. One thread's. The driver leaves little in the processor's caches, so all that a launch on credit needs is
/// in one line, or what its pointers point to.
struct alignas(64) Credit {
  void* stream = nullptr;   ///< the driver's handle. In whichever context is current: another one may be, so that the
                            ///< rest is submitted there
  uint64_t generation = 0;  ///< InFlight's: streams are what they were, and none captures
  const std::atomic<uint64_t>* generation_now = nullptr;
  const uint32_t* sequence_now = nullptr;  ///< the lease page's
  uint64_t* submissions = nullptr;         ///< the shim page's counter
  uint64_t begin_ticks = 0;
  uint32_t span_ticks = 0;
  uint32_t sequence = 0;
  int32_t left_ns = 0;    ///< expected time on the GPU
  int32_t unseen_ns = 0;  ///< so much of it may be spent before the next look at the time

  /// Is it for that stream? Not asked where there is none.
  bool is_for(const void* of) const {
    return stream == of && generation_now->load(std::memory_order_acquire) == generation;
  }
  /// May it be spent on something that is expected to take `expected_ns`? What is before its begin or after its end by
  /// the processor's counter may not. A look at the counter takes as long as all the rest, so there is one for each
  /// `look_ns` that are spent.
  bool spend(int64_t expected_ns, int32_t look_ns) {
    if (expected_ns > left_ns || __atomic_load_n(sequence_now, __ATOMIC_ACQUIRE) != sequence) return false;
    const auto spent_ns = static_cast<int32_t>(expected_ns);
    if (spent_ns > unseen_ns) {
      if (ticks() - begin_ticks >= span_ticks) return false;
      unseen_ns = look_ns;
    }
    unseen_ns -= spent_ns;
    left_ns -= spent_ns;
    __atomic_fetch_add(submissions, uint64_t{1}, __ATOMIC_RELAXED);
    return true;
  }
};

static_assert(sizeof(Credit) == 64);

}  // namespace freeride::shim
