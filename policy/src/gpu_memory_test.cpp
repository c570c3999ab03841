#include "freeride/policy/gpu_memory.hpp"

#include <catch2/catch.hpp>
#include <limits>

using namespace freeride::policy;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

GpuMemorySnapshot device(int64_t training_gib, std::vector<MemoryHolder> tasks) {
  return {80 * kGiB, training_gib * kGiB, 4 * kGiB, std::move(tasks)};
}

}  // namespace

TEST_CASE("side tasks may have what training's high-water mark, the reserve and live tasks leave", "[gpu_memory]") {
  CHECK(usable_bytes(device(60, {})) == 16 * kGiB);
  CHECK(usable_bytes(device(60, {{1, 0, 10 * kGiB, kGiB}})) == 6 * kGiB);  // its limit counts, not what it uses so far
  CHECK(usable_bytes(device(60, {{1, 0, 10 * kGiB, 12 * kGiB}})) == 4 * kGiB);  // unless it has come by more
  CHECK(usable_bytes(device(78, {})) == 0);
  CHECK(usable_bytes(device(0, {})) == 76 * kGiB);
}

TEST_CASE("figures that make no sense leave room for nobody", "[gpu_memory]") {
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(usable_bytes(device(60, {{1, 0, most, 0}, {2, 0, most, 0}})) == 0);
  CHECK(usable_bytes({-1, 0, 0, {}}) == 0);
  CHECK(usable_bytes({80 * kGiB, most, most, {{1, 0, -5, -5}}}) == 0);
  CHECK(usable_bytes({80 * kGiB, -5, -5, {}}) == 80 * kGiB);
}

TEST_CASE("nobody is evicted while half of the reserve is left", "[gpu_memory]") {
  CHECK(choose_evicted(device(60, {{1, 0, 16 * kGiB, 0}})).empty());
  CHECK(choose_evicted(device(62, {{1, 0, 16 * kGiB, 0}})).empty());
  CHECK(choose_evicted(device(63, {{1, 0, 16 * kGiB, 0}})) == std::vector<uint64_t>{1});
  CHECK(choose_evicted(device(79, {})).empty());  // nothing to give
}

TEST_CASE("the lowest priority goes first, then the youngest, until the reserve is whole", "[gpu_memory]") {
  const std::vector<MemoryHolder> tasks{
      {1, 0, 4 * kGiB, 0}, {2, 5, 4 * kGiB, 0}, {3, 0, 4 * kGiB, 0}, {4, -1, 4 * kGiB, 0}};
  CHECK(choose_evicted(device(63, tasks)) == std::vector<uint64_t>{4});
  CHECK(choose_evicted(device(67, tasks)) == std::vector<uint64_t>{4, 3});
  CHECK(choose_evicted(device(71, tasks)) == std::vector<uint64_t>{4, 3, 1});
  CHECK(choose_evicted(device(78, tasks)) == std::vector<uint64_t>{4, 3, 1, 2});
}

TEST_CASE("after an eviction what is left fits: nobody else follows", "[gpu_memory]") {
  std::vector<MemoryHolder> tasks{{1, 0, 6 * kGiB, 0}, {2, 0, 6 * kGiB, 0}, {3, 0, 6 * kGiB, 0}};
  for (int64_t training = 50; training <= 80; ++training) {
    auto left = device(training, tasks);
    for (const uint64_t id : choose_evicted(left)) {
      std::erase_if(left.tasks, [id](const MemoryHolder& task) { return task.id == id; });
    }
    CHECK(choose_evicted(left).empty());
  }
}

TEST_CASE("the high-water mark is training's, and ends with it", "[gpu_memory]") {
  TrainingMemory memory;
  const auto look = [&](int64_t used_gib, int64_t side_gib, bool attached, int times = 3) {
    for (int i = 0; i < times; ++i) memory.look(used_gib * kGiB, side_gib * kGiB, attached);
    return memory.high_bytes() / kGiB;
  };
  CHECK(look(2, 0, false, 1) == 2);  // the first look counts
  CHECK(look(50, 0, true) == 50);
  CHECK(look(60, 20, true) == 50);  // 40 are training's
  CHECK(look(10, 12, true) == 50);  // two figures of two moments
  CHECK(look(70, 0, true, 1) == 50);
  CHECK(look(40, 0, true, 1) == 50);  // a side task that was ending, not training
  CHECK(look(70, 0, true, 2) == 70);
  CHECK(look(3, 0, false) == 3);
}
