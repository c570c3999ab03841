#include "freeride/policy/placer.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <string>

using namespace freeride;
using namespace freeride::policy;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

DeviceView device(int number, int64_t gib, uint32_t tasks, const std::string& job = "gpt", int stages = 8) {
  std::string name = std::to_string(number);
  name.insert(0, 6 - name.size(), '0');
  DeviceView view{"h" + name, gib * kGiB, gib * kGiB, tasks, {}};
  if (!job.empty()) {
    const auto stage = static_cast<uint32_t>(number % stages);
    view.ranks.push_back(
        {job, stage, static_cast<uint32_t>(stages), static_cast<uint32_t>(number / stages), 1000, true});
  }
  return view;
}

std::vector<DeviceView> cluster(int count) {
  std::vector<DeviceView> devices;
  for (int n = 0; n < count; ++n) devices.push_back(device(n, 40, 0));
  return devices;
}

// Devices looked at to place as many tasks as there are devices.
uint64_t looks_for(int count, bool by_stage) {
  Placer placer(cluster(count));
  for (int n = 0; n < count; ++n) {
    PlacementRequest request;
    request.memory_bytes = 30 * kGiB;
    if (by_stage) request.stage = n % 8;
    const auto placed = placer.place(request);
    REQUIRE(placed.kind == Placement::Kind::kPlace);
    placer.put(placed.worker, request.memory_bytes);
  }
  for (const auto& view : placer.devices()) CHECK(view.tasks == 1);
  return placer.looks();
}

}  // namespace

TEST_CASE("placing N tasks on N devices looks at each device a fixed number of times") {
  for (const bool by_stage : {false, true}) {
    for (const int count : {1000, 4000}) CHECK(looks_for(count, by_stage) <= static_cast<uint64_t>(12 * count));
  }
}

TEST_CASE("a task that fits nowhere costs one look for each number of tasks") {
  auto devices = cluster(1000);
  for (size_t n = 0; n < devices.size(); ++n) devices[n].tasks = n % 4, devices[n].free_bytes = kGiB;
  Placer placer(devices);
  PlacementRequest request;
  request.memory_bytes = 30 * kGiB;
  CHECK(placer.place(request).why == Why::kNoMemory);
  const uint64_t before = placer.looks();
  for (int n = 0; n < 100; ++n) CHECK(placer.place(request).why == Why::kNoMemory);
  CHECK(placer.looks() - before <= 100 * 2 * 4);
}

// What Algorithm 1 says, in the words of its definition.
TEST_CASE("the answer is the one that looking at all devices gives") {
  std::mt19937 random(7);
  const auto any = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  for (int round = 0; round < 50; ++round) {
    std::vector<DeviceView> devices;
    for (int n = 0; n < 60; ++n) {
      devices.push_back(device(n, 10 + any(3) * 10, static_cast<uint32_t>(any(3)), any(5) == 0 ? "" : "gpt"));
      devices.back().free_bytes -= any(20) * kGiB;
    }
    Placer placer(devices);
    for (int n = 0; n < 40; ++n) {
      PlacementRequest request;
      request.memory_bytes = any(25) * kGiB;
      request.stage = any(2) == 0 ? -1 : any(8);
      request.when_idle = any(2) == 0;
      const DeviceView* best = nullptr;
      for (const auto& view : devices) {
        const bool idle = view.ranks.empty() && request.when_idle && request.stage < 0;
        const bool trained =
            !view.ranks.empty() && (request.stage < 0 || static_cast<int>(view.ranks[0].stage) == request.stage);
        if ((!idle && !trained) || view.free_bytes < request.memory_bytes) continue;
        if (best == nullptr || std::pair(view.tasks, -view.free_bytes) < std::pair(best->tasks, -best->free_bytes))
          best = &view;
      }
      const auto placed = placer.place(request);
      REQUIRE((placed.kind == Placement::Kind::kPlace) == (best != nullptr));
      if (best == nullptr) continue;
      REQUIRE(placed.worker == best->worker);
      placer.put(placed.worker, request.memory_bytes);
      auto& there = devices[static_cast<size_t>(best - devices.data())];
      ++there.tasks;
      there.free_bytes -= request.memory_bytes;
    }
  }
}

TEST_CASE("a device that is set to other figures is as one that had them from the start") {
  std::mt19937 random(7);
  std::vector<DeviceView> devices = cluster(40);
  Placer changed(devices);
  PlacementRequest any;
  any.memory_bytes = 2 * kGiB;
  for (int n = 0; n < 400; ++n) {
    DeviceView& view = devices[random() % devices.size()];
    view.free_bytes = static_cast<int64_t>(random() % 8) * kGiB;
    view.tasks = random() % 3;
    changed.set(view.worker, view.free_bytes, view.tasks);
    PlacementRequest request = any;
    request.stage = static_cast<int32_t>(random() % 9) - 1;
    const auto now = changed.place(request), fresh = Placer(devices).place(request);
    CHECK(now.kind == fresh.kind);
    CHECK(now.worker == fresh.worker);
    CHECK(now.what == fresh.what);
  }
  changed.set("nobody", 0, 0);
  CHECK(changed.place(any).worker == Placer(devices).place(any).worker);
}
