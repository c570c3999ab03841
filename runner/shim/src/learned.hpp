// Learned: how long what the program submits took before.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>

namespace freeride::shim {

/// What is known of one function with one grid, one graph, or one kind of copy with one order of size. Any thread
/// reads; times are recorded by one at a time (InFlight's lock).
class Cost {
 public:
  /// ns; 0: not known. Of the last four times the second largest, of two their mean.
  int64_t expected_ns() const { return expected_ns_.load(std::memory_order_relaxed); }
  /// It was on the GPU for so long. Values below 1 µs count as 1 µs.
  void record(int64_t took_ns);
  /// Is the next one to be timed? The first four are, then one in so many that timing takes about half a percent.
  /// Counts the submission.
  bool measure_next();

  uint64_t function() const { return function_; }

 private:
  friend class Learned;
  static constexpr uint32_t kWindow = 4;

  std::atomic<uint64_t> key_{0};  ///< 0: free
  uint64_t function_ = 0;         ///< what it is of: the driver's handle, or 0
  std::atomic<int64_t> expected_ns_{0};
  std::atomic<int32_t> until_measured_{0};
  std::atomic<uint32_t> samples_{0};
  std::array<int64_t, kWindow> recent_{};
};

/// A table of Costs that only grows, up to a bound, after which all new keys share one Cost each for their function.
/// Finding is lock-free; no allocation after the constructor. Any thread.
class Learned {
 public:
  static constexpr uint32_t kPlaces = 1u << 13;

  Learned();
  /// The Cost of `key`, which is a good hash of everything that tells one from another, made if need be. Never null.
  /// `handle` is the driver's of the function or graph, or 0: it is kept with a new Cost, and is the key where the
  /// table is full.
  Cost* find(uint64_t key, uint64_t handle) {
    Cost& first = places_[key % kPlaces];
    return first.key_.load(std::memory_order_acquire) == key && key != 0 ? &first : search(key, handle);
  }

 private:
  Cost* search(uint64_t key, uint64_t handle);
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

}  // namespace freeride::shim
