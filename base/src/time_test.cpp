#include "freeride/base/time.hpp"

#include <catch2/catch.hpp>
#include <thread>

#include "freeride/base/futex_waitv.hpp"

using namespace freeride;

TEST_CASE("times off a page are bounded before they are used") {
  CHECK(sane(0) == 0);
  CHECK(sane(5) == 5);
  CHECK(sane(INT64_MAX / 4) == INT64_MAX / 4);
  CHECK(sane(static_cast<uint64_t>(INT64_MAX / 4) + 1) == 0);
  CHECK(sane(UINT64_MAX) == 0);
  CHECK(as_time(5) == 5);
  CHECK(as_time(INT64_MAX) == INT64_MAX);
  CHECK(as_time(UINT64_MAX) == INT64_MAX);
  CHECK(as_timespec(3 * kNsPerSec + 7).tv_sec == 3);
  CHECK(as_timespec(3 * kNsPerSec + 7).tv_nsec == 7);
}

TEST_CASE("a clock that is not there shows -1") {
  CHECK(clock_ns(CLOCK_MONOTONIC) > 0);
  CHECK(clock_ns(9999) == -1);
}

TEST_CASE("milliseconds are told to a tenth") {
  CHECK(milliseconds(0) == "0 ms");
  CHECK(milliseconds(49'999) == "0 ms");
  CHECK(milliseconds(50'000) == "0.1 ms");
  CHECK(milliseconds(12 * kNsPerMs) == "12 ms");
  CHECK(milliseconds(12'349'999) == "12.3 ms");
}

TEST_CASE("a wait set ends when one of its words has another value, or is woken") {
  if (!check_kernel().ok()) return;  // Linux before 5.16
  uint32_t ours = 0, shared = 1;
  WaitSet waits;
  REQUIRE(waits.add_private(ours, 0));
  REQUIRE(waits.add_shared(shared, 2));
  CHECK(waits.changed());
  waits.wait(0);  // at once: one has changed
  shared = 2;
  CHECK_FALSE(waits.changed());
  waits.wait(SteadyClock::now() + kNsPerMs);  // its end
  std::thread other([&] {
    __atomic_store_n(&ours, 1, __ATOMIC_RELEASE);
    wake_private(ours);
  });
  while (!waits.changed()) waits.wait(0);
  other.join();
  waits.clear();
  for (size_t i = 0; i < WaitSet::kMost; ++i) CHECK(waits.add_shared(shared, 2));
  CHECK_FALSE(waits.add_shared(shared, 2));
}
