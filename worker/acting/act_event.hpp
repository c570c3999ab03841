// What the acting thread tells the main thread, and the bounded queue it goes through.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace freeride::worker {

/// One observation of the acting thread. Which fields count depends on the kind. Times are CLOCK_MONOTONIC.
struct ActEvent {
  enum class Kind : uint8_t {
    kBubbleBegin,  ///< rank; iteration, wait, begin, learned
    kBubbleEnd,    ///< rank; all but bubble_ns
    kIteration,    ///< rank; iteration, begin, end, bubble, harvested, holdout, leased, transitions
    kRankState,    ///< rank: its hook's state changed; look at its page
    kTaskState,    ///< task: its state changed for longer than a lease; look at its page
  };
  Kind kind = Kind::kBubbleBegin;
  bool leased = false;
  bool holdout = false;
  bool transitions = false;  ///< some side task's, without a bubble's lease
  uint32_t wait = 0;
  uint32_t type = 0;  ///< 'A', 'B', 'C' or 0
  uint64_t id = 0;    ///< of the rank or task, as given when it was added
  uint64_t iteration = 0;
  int64_t begin_ns = 0, end_ns = 0, learned_ns = 0;
  int64_t harvested_ns = 0, overrun_ns = 0, bubble_ns = 0;
  uint64_t task = 0;                           ///< that had the last lease in the bubble; 0: none
  int64_t side_begin_ns = 0, side_end_ns = 0;  ///< of execution in the bubble; 0: no step was made
};

/// Single producer, single consumer, no locks, no allocation after construction. What does not fit is dropped and
/// counted.
class EventRing {  // NOLINT(clang-analyzer-optin.performance.Padding): each side's index has a cache line of its own
 public:
  static constexpr size_t kCapacity = 4096;

  /// Producer only.
  void push(const ActEvent& event) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == kCapacity) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    (*slots_)[tail % kCapacity] = event;
    tail_.store(tail + 1, std::memory_order_release);
  }
  /// Either side; at the moment of asking.
  bool empty() const { return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire); }
  /// Consumer only. False: empty.
  bool pop(ActEvent& event) {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    event = (*slots_)[head % kCapacity];
    head_.store(head + 1, std::memory_order_release);
    return true;
  }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  std::unique_ptr<std::array<ActEvent, kCapacity>> slots_ = std::make_unique<std::array<ActEvent, kCapacity>>();
  alignas(64) std::atomic<size_t> head_{0};
  alignas(64) std::atomic<size_t> tail_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace freeride::worker
