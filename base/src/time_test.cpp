#include "freeride/base/time.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <thread>

#include "freeride/base/wait_set.hpp"

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
  waits.wait(0);  // at once
  waits.clear();
  for (size_t i = 0; i < WaitSet::kMost; ++i) CHECK(waits.add_shared(shared, 2));
  CHECK_FALSE(waits.add_shared(shared, 2));
}

TEST_CASE("a wait set without futex_waitv sleeps on its bell") {
  if (has_futex_waitv()) return;  // as in base_test_without_futex_waitv
  uint32_t word = 0, bell = 0;
  WaitSet waits;
  REQUIRE(waits.add_shared(word, 0, true));
  std::thread sleeper([&] {
    while (!waits.changed()) waits.wait(0, &bell);
  });
  // It sleeps there, and does not miss what was rung before it slept.
  while (syscall(SYS_futex, &bell, FUTEX_WAKE, 1, nullptr, nullptr, 0) != 1) std::this_thread::yield();
  __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
  __atomic_add_fetch(&bell, 1, __ATOMIC_RELEASE);
  syscall(SYS_futex, &bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  sleeper.join();
  // One that does not ring is seen all the same, and a deadline is one.
  uint32_t silent = 0;
  waits.clear();
  REQUIRE(waits.add_shared(silent, 0));
  std::thread other([&] { __atomic_store_n(&silent, 1, __ATOMIC_RELEASE); });
  while (!waits.changed()) waits.wait(0, &bell);
  other.join();
  waits.clear();
  waits.wait(SteadyClock::now() + kNsPerMs, &bell);
}
