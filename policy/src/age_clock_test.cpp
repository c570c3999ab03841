#include "freeride/policy/age_clock.hpp"

#include <catch2/catch.hpp>

#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::policy;

namespace {

constexpr int64_t kHourMs = 3'600'000, kHourNs = 3600 * kNsPerSec, kNow = 1'800'000'000'000;

}  // namespace

TEST_CASE("age clock: follows a wall clock that goes right", "[age_clock]") {
  AgeClock clock;
  for (int64_t hour = 0; hour < 1000; ++hour)
    CHECK(clock.at(kNow + hour * kHourMs, hour * kHourNs) == kNow + hour * kHourMs);
}

TEST_CASE("age clock: a step of the wall clock makes nothing old", "[age_clock]") {
  AgeClock clock(kNow - kHourMs);
  CHECK(clock.at(kNow + 5000 * kHourMs, 0) == kNow - kHourMs);  // already at the start
  CHECK(clock.at(kNow + 5000 * kHourMs, 4 * kHourNs) == kNow + 4 * kHourMs);
  CHECK(clock.at(kNow + 5 * kHourMs, 5 * kHourNs) == kNow + 5 * kHourMs);
  CHECK(clock.at(kNow - 9000 * kHourMs, 6 * kHourNs) == kNow - 9000 * kHourMs);  // backwards: nothing is old then
  CHECK(clock.at(kNow + 7 * kHourMs, 7 * kHourNs) == kNow + 6 * kHourMs + kHourMs / 4);
}

TEST_CASE("age clock: a wall clock that is years behind at the start is followed once it is right", "[age_clock]") {
  AgeClock clock(kNow);
  CHECK(clock.at(kHourMs, 0) == kHourMs);
  CHECK(clock.at(kNow + kHourMs, kHourNs) == kNow + kHourMs);
}

TEST_CASE("age clock: after a time without power it comes up to the wall clock in four times that", "[age_clock]") {
  AgeClock clock(kNow);
  const int64_t away = 10 * kHourMs;
  CHECK(clock.at(kNow + away, 0) == kNow);
  CHECK(clock.at(kNow + away + 20 * kHourMs, 20 * kHourNs) == kNow + 25 * kHourMs);
  CHECK(clock.at(kNow + away + 40 * kHourMs, 40 * kHourNs) == kNow + away + 40 * kHourMs);
}

TEST_CASE("age clock: asked at every instant, it is as fast as time", "[age_clock]") {
  AgeClock clock(kNow);
  clock.at(kNow + kHourMs, 0);
  int64_t at = 0;
  for (int64_t us = 0; us <= 1'000'000; us += 100) at = clock.at(kNow + kHourMs, us * 1000);
  CHECK(at >= kNow + 1000);
}
