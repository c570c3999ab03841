#include "learned.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"

namespace freeride::shim {
namespace {

// What timing one submission takes of the host and of the GPU, times two hundred.
constexpr int64_t kTimingPays = 400 * kNsPerUs;
constexpr int64_t kMostBetween = 256;

}  // namespace

void Cost::record(int64_t took_ns) {
  const uint32_t seen = samples_.load(std::memory_order_relaxed);
  recent_[seen % kWindow] = std::max(took_ns, kNsPerUs);
  samples_.store(seen + 1, std::memory_order_relaxed);
  const uint32_t count = std::min(seen + 1, kWindow);
  auto sorted = recent_;
  std::sort(sorted.begin(), sorted.begin() + count);
  const int64_t expected = count == 1 ? sorted[0] : count == 2 ? (sorted[0] + sorted[1]) / 2 : sorted[count - 2];
  expected_ns_.store(expected, std::memory_order_relaxed);
}

bool Cost::measure_next() {
  // Two threads may count one submission once: timing comes a little later then.
  const int32_t left = until_measured_.load(std::memory_order_relaxed);
  if (left > 0) {
    until_measured_.store(left - 1, std::memory_order_relaxed);
    return false;
  }
  const int64_t expected = expected_ns();
  const bool few = samples_.load(std::memory_order_relaxed) < kWindow;
  const int64_t between = expected == 0 || few ? 0 : std::min(kTimingPays / expected, kMostBetween - 1);
  until_measured_.store(static_cast<int32_t>(between), std::memory_order_relaxed);
  return true;
}

Learned::Learned() : places_(new Cost[kPlaces]) {}

Cost* Learned::place(uint64_t key, uint64_t handle, uint32_t tries) {
  for (uint32_t i = 0; i < tries; ++i) {
    Cost& cost = places_[(key + i) % kPlaces];
    uint64_t there = cost.key_.load(std::memory_order_acquire);
    if (there == key) return &cost;
    if (there != 0) continue;
    // The last quarter is for functions.
    if (used_.load(std::memory_order_relaxed) >= kPlaces / 4 * 3 && key != mix(1, handle)) return nullptr;
    if (cost.key_.compare_exchange_strong(there, key, std::memory_order_acq_rel)) {
      used_.fetch_add(1, std::memory_order_relaxed);
      __atomic_store_n(&cost.function_, handle, __ATOMIC_RELAXED);
      return &cost;
    }
    if (there == key) return &cost;
  }
  return nullptr;
}

Cost* Learned::search(uint64_t key, uint64_t handle) {
  constexpr uint32_t kTries = 32;
  if (Cost* cost = place(key == 0 ? 1 : key, handle, kTries)) return cost;
  if (Cost* cost = place(mix(1, handle), handle, kTries)) return cost;
  return &rest_;
}

}  // namespace freeride::shim
