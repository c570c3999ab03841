// Learned: how long what the program submits took before.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>

namespace freeride::shim {

/// What is known of one function with one grid or with any, of one graph, or of one kind of copy with one order of
/// size. Any thread reads; times are recorded by one at a time (InFlight's lock).
class alignas(64) Cost {
 public:
  /// ns; 0: not known. Of the last four times the second largest, of two their mean.
  int64_t expected_ns() const { return expected_ns_.load(std::memory_order_relaxed); }
  /// Before it is known, by its function with other grids: the longest of the last four, and more in proportion where
  /// this grid has more blocks. A program whose shapes change, as text that grows, has new grids in each step. ns; 0:
  /// the function is not known either.
  int64_t guessed_ns() const;
  /// It was on the GPU for so long. Values below 1 µs count as 1 µs.
  void record(int64_t took_ns);
  /// As record(), of a submission between whose two events the host took `host_ns`, in which the GPU may have had
  /// nothing to do: the driver loads a kernel's code at its first launch. Where that may be a good part of `took_ns`
  /// nothing is recorded and the next one is timed; but not for ever. `idle_ns`: of `took_ns`, what the GPU had nothing
  /// to do in, from the event before the call to the call's return, and which is no part of what it took. True: it is
  /// recorded.
  bool record(int64_t took_ns, int64_t host_ns, int64_t idle_ns = 0);
  /// Is the next one to be timed? The first four are. Later it is one for each 8 ms that these submissions take, or for
  /// up to 128 ms while their times are about the expected ones, and one that comes a second after the last. Counts the
  /// submission.
  bool measure_next(int64_t now_ns);
  /// The next one need not be timed, and is counted: measure_next() without its own choice.
  bool skip_next() {
    const int32_t left = until_measured_.load(std::memory_order_relaxed);
    if (left > 0) until_measured_.store(left - 1, std::memory_order_relaxed);
    return left > 0;
  }

  uint64_t function() const { return function_; }

 private:
  friend class Learned;
  static constexpr uint32_t kWindow = 4;
  static constexpr uint8_t kMostExpected = 2;  ///< each makes timing a quarter as frequent

  void note(int64_t took_ns, uint64_t blocks);

  // A launch reads the first three, in one line of the processor's cache.
  std::atomic<uint64_t> key_{0};  ///< 0: free
  std::atomic<int64_t> expected_ns_{0};
  std::atomic<int32_t> until_measured_{0};
  std::atomic<uint32_t> samples_{0};
  uint64_t function_ = 0;             ///< what it is of: the driver's handle, or 0
  std::atomic<uint8_t> expected_{0};  ///< times in a row that were as expected, up to kMostExpected
  uint8_t dropped_ = 0;               ///< times in a row
  std::atomic<bool> all_{false};      ///< it is a function's, with any grid
  std::atomic<int64_t> timed_ns_{0};  ///< when the last was
  std::array<int64_t, kWindow> recent_{};
  std::atomic<Cost*> of_all_{nullptr};  ///< the function's with any grid; null: it is that one, or no kernel's
  std::atomic<uint64_t> blocks_{0};     ///< of its grid; of a function's, those of its longest
  std::array<uint64_t, kWindow> recent_blocks_{};
};

static_assert(sizeof(Cost) == 128);

/// A table of Costs that only grows, up to a bound, after which all new keys share one Cost each for their function.
/// Finding is lock-free; no allocation after the constructor. Any thread.
class Learned {
 public:
  static constexpr uint32_t kPlaces = 1u << 13;

  Learned();
  /// The Cost of `key`, which is a good hash of everything that tells one from another, made if need be. Never null.
  /// `handle` is the driver's of the function or graph, or 0: it is kept with a new Cost, and is the key where the
  /// table is full. `blocks`: of a kernel's grid, else 0.
  Cost* find(uint64_t key, uint64_t handle, uint64_t blocks = 0) {
    Cost& first = places_[key % kPlaces];
    return first.key_.load(std::memory_order_acquire) == key && key != 0 ? &first : search(key, handle, blocks);
  }

 private:
  Cost* search(uint64_t key, uint64_t handle, uint64_t blocks);
  Cost* of_all(uint64_t handle);
  Cost* place(uint64_t key, uint64_t handle, uint32_t tries);

  std::unique_ptr<Cost[]> places_;
  std::atomic<uint32_t> used_{0};
  Cost rest_;
};

/// Mixes a number into a hash.
constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (std::rotl(hash, 23) ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

/// The same for four numbers and a hash, which are multiplied side by side: a launch waits for it.
constexpr uint64_t mix(uint64_t hash, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const uint64_t sum = hash + a * 0x9e3779b97f4a7c15ull + std::rotl(b * 0xbf58476d1ce4e5b9ull, 17) +
                       std::rotl(c * 0x94d049bb133111ebull, 31) + std::rotl(d * 0xd6e8feb86659fd93ull, 47);
  return mix(sum, sum >> 32);
}

}  // namespace freeride::shim
