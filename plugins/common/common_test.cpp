// How a step is bounded, and which backend is chosen.
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "common/backend.hpp"

using common::Backend;
using common::choose_backend;
using common::Pace;
using std::chrono::microseconds;

TEST_CASE("the backend follows the device, and nobody on a CPU device gets a GPU") {
  CHECK(choose_backend("auto", "cpu-3") == Backend::kCpu);
  CHECK(choose_backend("cpu", "cpu-3") == Backend::kCpu);
  CHECK(choose_backend("cpu", "GPU-1234") == Backend::kCpu);
  CHECK_THROWS_AS(choose_backend("cuda", "cpu-3"), freeride::BadParameter);
  // This test is built without CUDA.
  CHECK_THROWS_AS(choose_backend("auto", "GPU-1234"), freeride::Unavailable);
  CHECK_THROWS_AS(choose_backend("cuda", "GPU-1234"), freeride::Unavailable);
}

TEST_CASE("a pace begins carefully, learns what fits, and cuts what is left into even parts") {
  Pace pace(1.0);
  CHECK(pace.next(6400, 6400) == 100);
  CHECK(pace.next(0, 6400) == 0);
  CHECK(pace.next(3, 3) == 1);
  for (int i = 0; i < 50; ++i) pace.done(100, microseconds(100));  // 1 µs each: 1000 fit
  CHECK(pace.next(900, 6400) == 900);
  CHECK(pace.next(1500, 6400) == 750);                             // not 1000 and 500
  CHECK(pace.next(6400, 6400) == 915);                             // seven parts
  for (int i = 0; i < 50; ++i) pace.done(100, microseconds(400));  // it has become slower
  CHECK(pace.next(900, 6400) == 225);
  for (int i = 0; i < 50; ++i) pace.done(1, microseconds(5000));  // one alone is too long already
  CHECK(pace.next(900, 6400) == 1);
}

TEST_CASE("a pace takes everything in the end, whatever it learns on the way") {
  Pace pace(0.5);
  uint64_t left = 12345;
  for (int pieces = 0; left > 0; ++pieces) {
    REQUIRE(pieces < 12345);
    const auto part = pace.next(left, 12345);
    REQUIRE(part > 0);
    REQUIRE(part <= left);
    pace.done(part, microseconds(pieces % 3 * 200));
    left -= part;
  }
}

TEST_CASE("a step ends before a piece that would not end in time") {
  common::StepBudget none(0.05);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a piece longer than the step
  CHECK_FALSE(none.another());
  common::StepBudget hours(3.6e6);
  for (int i = 0; i < 1000; ++i) REQUIRE(hours.another());
}

TEST_CASE("pace: a work that was once cut into two is whole again where it fits") {
  common::Pace pace(1);
  // 0.12 ms for a piece and 0.82 ms for all of the work; something else had the device in the first ones.
  const auto work = [&](double slower) {
    int pieces = 0;
    for (uint64_t left = 640; left > 0; ++pieces) {
      const uint64_t part = pace.next(left, 640);
      pace.done(part, std::chrono::nanoseconds(
                          static_cast<int64_t>(1e6 * slower * (0.12 + 0.82 * static_cast<double>(part) / 640))));
      left -= part;
    }
    return pieces;
  };
  for (int i = 0; i < 10; ++i) work(2);
  CHECK(work(1) > 1);
  for (int i = 0; i < 500; ++i) work(1);
  for (int i = 0; i < 500; ++i) CHECK(work(1) == 1);
}

TEST_CASE("pace: a work that does not fit in one piece fewer is seldom tried so") {
  common::Pace pace(1);
  int longer = 0;
  for (int i = 0; i < 1000; ++i) {
    for (uint64_t left = 1000; left > 0;) {
      const uint64_t part = pace.next(left, 1000);
      const auto took = std::chrono::nanoseconds(1070 * part);  // all of it in 1.07 ms
      pace.done(part, took);
      if (i > 0 && took > std::chrono::milliseconds(1)) ++longer;
      left -= part;
    }
  }
  CHECK(longer <= 16);
}
