#include "learned.hpp"

#include <catch2/catch.hpp>
#include <set>
#include <thread>
#include <vector>

#include "freeride/base/clock.hpp"

namespace freeride::shim {

TEST_CASE("what is expected is the second largest of the last four") {
  Learned learned;
  Cost& cost = *learned.find(7, 1);
  CHECK(cost.expected_ns() == 0);
  cost.record(100 * kNsPerUs);  // the first is often the longest: it loads
  CHECK(cost.expected_ns() == 100 * kNsPerUs);
  cost.record(10 * kNsPerUs);
  CHECK(cost.expected_ns() == 55 * kNsPerUs);
  cost.record(12 * kNsPerUs);
  CHECK(cost.expected_ns() == 12 * kNsPerUs);
  cost.record(11 * kNsPerUs);
  CHECK(cost.expected_ns() == 12 * kNsPerUs);
  for (int i = 0; i < 2; ++i) cost.record(80 * kNsPerUs);
  CHECK(cost.expected_ns() == 80 * kNsPerUs);
  for (int i = 0; i < 4; ++i) cost.record(0);
  CHECK(cost.expected_ns() == kNsPerUs);
}

TEST_CASE("a time in which the host loaded the kernel is not the kernel's") {
  Learned learned;
  Cost& cost = *learned.find(7, 1);
  REQUIRE(cost.measure_next(1));
  cost.record(70 * kNsPerMs, 69 * kNsPerMs);
  CHECK(cost.expected_ns() == 0);
  REQUIRE(cost.measure_next(1));
  cost.record(300 * kNsPerUs, 20 * kNsPerUs);
  CHECK(cost.expected_ns() == 300 * kNsPerUs);
  // A long kernel that is not waited for by its call.
  Cost& other = *learned.find(8, 2);
  other.record(70 * kNsPerMs, kNsPerMs);
  CHECK(other.expected_ns() == 70 * kNsPerMs);
  // A driver whose calls are always slow.
  Cost& slow = *learned.find(9, 3);
  for (int i = 0; i < 5; ++i) slow.record(kNsPerMs, kNsPerMs);
  CHECK(slow.expected_ns() == kNsPerMs);
}

TEST_CASE("the first four are timed, then the fewer the shorter and the steadier they are") {
  Learned learned;
  // The times in turns, all within a second.
  const auto timed = [&](uint64_t key, std::vector<int64_t> took_ns, int count) {
    Cost& cost = *learned.find(key, 1);
    size_t times = 0;
    for (int i = 0; i < count; ++i) {
      if (cost.measure_next(1)) cost.record(took_ns[times++ % took_ns.size()]);
    }
    return times;
  };
  CHECK(timed(1, {kNsPerUs}, 4) == 4);
  CHECK(timed(1, {kNsPerUs}, 100'000) <= 6);
  CHECK(timed(3, {40 * kNsPerUs}, 1100) <= 6);
  const size_t steady = timed(2, {4 * kNsPerMs}, 1000);
  CHECK(steady >= 30);
  CHECK(steady <= 40);
  CHECK(timed(4, {4 * kNsPerMs, 12 * kNsPerMs}, 1000) >= 10 * steady);
}

TEST_CASE("a second after the last one is timed, and another one if it is off") {
  Learned learned;
  Cost& cost = *learned.find(7, 1);
  int64_t now_ns = kNsPerSec;
  for (int i = 0; i < 1000; ++i) {
    if (cost.measure_next(now_ns)) cost.record(100 * kNsPerUs);
  }
  CHECK_FALSE(cost.measure_next(now_ns));
  now_ns += kNsPerSec + 1;
  for (int i = 0; i < 2; ++i) {
    REQUIRE(cost.measure_next(now_ns));
    cost.record(3 * kNsPerMs);
  }
  CHECK(cost.expected_ns() == 3 * kNsPerMs);
}

TEST_CASE("after times that were off by chance the right ones are soon expected again") {
  Learned learned;
  Cost& cost = *learned.find(7, 1);
  const auto launch = [&](int count, int64_t took_ns) {
    for (int i = 0; i < count; ++i) {
      if (cost.measure_next(1)) cost.record(took_ns);
    }
  };
  launch(10'000, 100 * kNsPerUs);
  for (int i = 0; i < 2; ++i) cost.record(kNsPerMs);
  CHECK(cost.expected_ns() == kNsPerMs);
  launch(100, 100 * kNsPerUs);
  CHECK(cost.expected_ns() == 100 * kNsPerUs);
}

TEST_CASE("each key has a cost of its own until the table is full, then each function") {
  Learned learned;
  std::set<Cost*> costs;
  for (uint64_t i = 0; i < Learned::kPlaces / 2; ++i) costs.insert(learned.find(mix(1, i), i));
  CHECK(costs.size() == Learned::kPlaces / 2);
  CHECK(learned.find(mix(1, 5), 5) == learned.find(mix(1, 5), 5));
  CHECK(learned.find(mix(1, 5), 5)->function() == 5);
  for (uint64_t i = 0; i < Learned::kPlaces; ++i) learned.find(mix(2, i), 1);
  Cost* one = learned.find(mix(4, 1), 77);
  CHECK(one == learned.find(mix(4, 2), 77));
  CHECK(one != learned.find(mix(4, 3), 78));
  CHECK(learned.find(0, 3) != nullptr);
}

TEST_CASE("a grid that is new is guessed by its function with other grids") {
  Learned learned;
  Cost& first = *learned.find(mix(3, 1), 7, 100);
  CHECK(first.guessed_ns() == 0);
  for (int i = 0; i < 4; ++i) first.record(40 * kNsPerUs);
  CHECK(learned.find(mix(3, 2), 7, 100)->expected_ns() == 0);
  CHECK(learned.find(mix(3, 2), 7, 100)->guessed_ns() == 40 * kNsPerUs);
  CHECK(learned.find(mix(3, 3), 7, 10)->guessed_ns() == 40 * kNsPerUs);  // fewer blocks need not be faster
  CHECK(learned.find(mix(3, 4), 7, 250)->guessed_ns() == 100 * kNsPerUs);
  CHECK(learned.find(mix(3, 5), 8, 100)->guessed_ns() == 0);  // another function
  CHECK(learned.find(mix(3, 6), 7)->guessed_ns() == 0);       // no kernel
  // The longest of the last four, with its own grid.
  learned.find(mix(3, 4), 7, 250)->record(90 * kNsPerUs);
  CHECK(learned.find(mix(3, 7), 7, 500)->guessed_ns() == 180 * kNsPerUs);
  CHECK(first.expected_ns() == 40 * kNsPerUs);
}

TEST_CASE("threads that look for one key find one cost") {
  Learned learned;
  std::vector<std::thread> threads;
  std::vector<std::vector<Cost*>> found(4);
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t key = 0; key < 1000; ++key) found[i].push_back(learned.find(mix(9, key), key));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& one : found) CHECK(one == found[0]);
}

}  // namespace freeride::shim
