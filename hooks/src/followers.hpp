// Followers: streams that wait for an event of a stream that is held wait for what that one waits for, first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>

#include "cuda_driver.hpp"
#include "freeride/policy/count_ring.hpp"

namespace freeride::hooks {

/// A GPU hands a context's time to others while all that is pending in it waits for a value in memory. A stream that
/// waits for another one's *event* keeps the time slices, though it can do nothing: a process beside it made 10 % of
/// its steps on an H200, and 99 % where that stream waited for the value, too
/// (findings/event-wait-keeps-time-slices.sh). Such waits are made by NCCL's streams in torch, by collectives on groups
/// beside the pipeline, by copies. So the event of a stream behind a hold is remembered, and whoever is about to wait
/// for it waits for the hold's counters first. The event comes after them in any case, so nobody waits longer than he
/// would.
///
/// What is not remembered (an event that is one of too many, a runtime whose calls are not seen, another context) only
/// costs side tasks.
/// Any thread; a lock is held for some dozens of instructions. Nothing allocates.
class Followers {
 public:
  /// One counter that a hold waits for: where the GPU and the host see it, and from which value on it is over.
  struct Word {
    CudaAddress address = 0;
    const uint32_t* counter = nullptr;
    uint32_t value = 0;
  };
  static constexpr size_t kMostWords = 16;  ///< of a hold; one with more has no followers

  /// On a thread whose current context is the one of all held streams.
  explicit Followers(CudaDriver cuda) : cuda_(cuda), context_(cuda.context()) {}

  /// `stream` has been told to wait for all of these. They must be there as long as this is.
  void held(CudaStream stream, std::span<const Word> words);
  /// `event` is about to be recorded on `stream`.
  void recorded(CudaEvent event, CudaStream stream);
  /// `stream` is about to wait for `event`. Errors: of CUDA; a wait may be missing then, which nobody needs.
  Status about_to_wait(CudaStream stream, CudaEvent event);

  /// Forgets the holds that are over: a counter that begins anew must not bring one back. Once an iteration.
  void forget_over();

  /// Waits that were made, for measurements.
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kHolds = 64, kStreams = 256, kEvents = 4096;
  struct Hold {
    uint64_t number = 0;
    size_t count = 0;
    std::array<Word, kMostWords> words{};
  };
  // A handle and the newest hold that it is behind. Two that fall on one place know only the later one's.
  struct Behind {
    const void* handle = nullptr;
    uint64_t hold = 0;
  };
  template <size_t N>
  static Behind& at(std::array<Behind, N>& all, const void* handle);
  template <size_t N>
  static uint64_t hold_of(std::array<Behind, N>& all, const void* handle);
  const Hold* pending(uint64_t number);
  bool concerns(CudaStream stream) const;

  CudaDriver cuda_;
  const void* const context_;
  std::mutex mutex_;
  uint64_t newest_ = 0;
  std::atomic<bool> any_{false};
  std::array<Hold, kHolds> holds_{};
  std::array<Behind, kStreams> streams_{};
  std::array<Behind, kEvents> events_{};
  std::atomic<uint64_t> count_{0};
};

}  // namespace freeride::hooks
