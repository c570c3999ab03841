#include "learned.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"

namespace freeride::shim {
namespace {

// Timing one submission takes some 20 µs of the host and of the GPU, which then executes nothing side by side: a
// quarter of a percent of this.
constexpr int64_t kTimingPays = 8 * kNsPerMs;
constexpr int64_t kMostBetween = 1 << 16;
// Whatever it takes: what became slower is not believed to be fast for longer, by who passes the gate.
constexpr int64_t kTimedAnew = kNsPerSec;
// A time is about the expected one if neither is more than twice the other, or they differ by what two events vary.
constexpr int64_t kAboutFactor = 2;
constexpr int64_t kAboutNs = 10 * kNsPerUs;
constexpr uint32_t kTries = 32;
// Where the host takes so long between two events, the driver did more than launch, or the process was stopped. A time
// of which that is a quarter is not the GPU's alone; after so many of them in a row the launches are as slow as that.
constexpr int64_t kSlowCallNs = 200 * kNsPerUs;
constexpr int64_t kShareOfCall = 4;
constexpr uint32_t kMostDropped = 4;

}  // namespace

int64_t Cost::guessed_ns() const {
  const Cost* all = of_all_.load(std::memory_order_acquire);
  const int64_t longest_ns = all == nullptr ? 0 : all->expected_ns();
  const uint64_t blocks = blocks_.load(std::memory_order_relaxed);
  const uint64_t of_longest = longest_ns == 0 ? 0 : all->blocks_.load(std::memory_order_relaxed);
  if (of_longest == 0 || blocks <= of_longest) return longest_ns;
  return static_cast<int64_t>(static_cast<double>(longest_ns) * static_cast<double>(blocks) /
                              static_cast<double>(of_longest));
}

// Of a function, with whatever grid.
void Cost::note(int64_t took_ns, uint64_t blocks) {
  const uint32_t seen = samples_.load(std::memory_order_relaxed);
  recent_[seen % kWindow] = std::max(took_ns, kNsPerUs);
  recent_blocks_[seen % kWindow] = blocks;
  samples_.store(seen + 1, std::memory_order_relaxed);
  const auto longest = std::max_element(recent_.begin(), recent_.end());
  blocks_.store(recent_blocks_[static_cast<size_t>(longest - recent_.begin())], std::memory_order_relaxed);
  expected_ns_.store(*longest, std::memory_order_relaxed);
}

void Cost::record(int64_t took_ns) {
  if (all_.load(std::memory_order_relaxed)) return note(took_ns, 0);
  if (Cost* all = of_all_.load(std::memory_order_relaxed)) all->note(took_ns, blocks_.load(std::memory_order_relaxed));
  const uint32_t seen = samples_.load(std::memory_order_relaxed);
  took_ns = std::max(took_ns, kNsPerUs);
  const int64_t expected_ns = expected_ns_.load(std::memory_order_relaxed);
  const auto [low_ns, high_ns] = std::minmax(took_ns, expected_ns);
  const uint8_t before = expected_.load(std::memory_order_relaxed);
  if (high_ns <= low_ns + kAboutNs || high_ns <= kAboutFactor * low_ns) {
    expected_.store(std::min(static_cast<uint8_t>(before + 1), kMostExpected), std::memory_order_relaxed);
  } else {
    expected_.store(0, std::memory_order_relaxed);
    // One that is off is not believed before another is.
    if (before > 0) until_measured_.store(0, std::memory_order_relaxed);
  }
  recent_[seen % kWindow] = took_ns;
  samples_.store(seen + 1, std::memory_order_relaxed);
  const uint32_t count = std::min(seen + 1, kWindow);
  auto sorted = recent_;
  std::sort(sorted.begin(), sorted.begin() + count);
  const int64_t expected = count == 1 ? sorted[0] : count == 2 ? (sorted[0] + sorted[1]) / 2 : sorted[count - 2];
  expected_ns_.store(expected, std::memory_order_relaxed);
}

bool Cost::record(int64_t took_ns, int64_t host_ns, int64_t idle_ns) {
  const bool slow = host_ns > kSlowCallNs && host_ns > took_ns / kShareOfCall;
  if (slow && dropped_ < kMostDropped) {
    ++dropped_;
    until_measured_.store(0, std::memory_order_relaxed);
    return false;
  }
  dropped_ = 0;
  // A slow call may have waited for what it submits (CUDA_LAUNCH_BLOCKING).
  record(!slow && idle_ns < took_ns ? took_ns - idle_ns : took_ns);
  return true;
}

bool Cost::measure_next(int64_t now_ns) {
  const bool anew = now_ns - timed_ns_.load(std::memory_order_relaxed) > kTimedAnew;
  // Two threads may count one submission once: timing comes a little later then.
  if (!anew && skip_next()) return false;
  timed_ns_.store(now_ns, std::memory_order_relaxed);
  const int64_t expected = expected_ns();
  const bool few = samples_.load(std::memory_order_relaxed) < kWindow;
  const int64_t pays_ns = kTimingPays << (2 * expected_.load(std::memory_order_relaxed));
  const int64_t between = expected == 0 || few ? 0 : std::min(pays_ns / expected, kMostBetween - 1);
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

Cost* Learned::of_all(uint64_t handle) {
  Cost* cost = place(mix(1, handle), handle, kTries);
  if (cost != nullptr) cost->all_.store(true, std::memory_order_relaxed);
  return cost;
}

Cost* Learned::search(uint64_t key, uint64_t handle, uint64_t blocks) {
  Cost* cost = place(key == 0 ? 1 : key, handle, kTries);
  if (cost == nullptr) {
    Cost* all = of_all(handle);
    return all == nullptr ? &rest_ : all;
  }
  if (blocks == 0 || cost->blocks_.load(std::memory_order_relaxed) != 0) return cost;
  cost->blocks_.store(blocks, std::memory_order_relaxed);
  if (Cost* all = of_all(handle); all != cost) cost->of_all_.store(all, std::memory_order_release);
  return cost;
}

}  // namespace freeride::shim
