// Clock: CLOCK_MONOTONIC in nanoseconds, injected so that tests can turn it by hand.
#pragma once

#include <atomic>
#include <cstdint>

namespace freeride {

constexpr int64_t kNsPerUs = 1'000;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr int64_t kNsPerSec = 1'000'000'000;

/// Source of monotonic time. Any thread; never blocks.
class Clock {
 public:
  virtual ~Clock() = default;
  /// CLOCK_MONOTONIC, ns: the same clock in every process of a host, the one the pages carry.
  virtual int64_t now_ns() const = 0;
};

/// The real clock.
class SteadyClock final : public Clock {
 public:
  int64_t now_ns() const override { return now(); }
  static int64_t now();
};

/// CLOCK_BOOTTIME, ns: as CLOCK_MONOTONIC, but it goes on while the host is suspended. For what expires whether this
/// host notices or not. Any thread; never blocks.
int64_t boottime_now();

/// A clock that stands still until ticked. Any thread.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t start_ns = kNsPerSec) : now_ns_(start_ns) {}
  int64_t now_ns() const override { return now_ns_; }
  void tick(int64_t ns) { now_ns_ += ns; }
  void set(int64_t ns) { now_ns_ = ns; }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace freeride
