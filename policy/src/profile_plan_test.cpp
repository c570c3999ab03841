#include "freeride/policy/profile_plan.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;

namespace {
ProfileDevice device(const std::string& name, int64_t free_bytes, uint32_t tasks = 0, bool trainer = false) {
  ProfileDevice one;
  one.device.worker = name;
  one.device.free_bytes = free_bytes;
  one.device.tasks = tasks;
  if (trainer) one.device.ranks.resize(1);
  return one;
}
}  // namespace

TEST_CASE("profile_plan: as many steps as are wanted, else some, and more while they are short") {
  CHECK_FALSE(profile_is_enough({3, kEnoughProfileNs * 9, 4}));
  CHECK(profile_is_enough({4, 0, 4}));
  CHECK_FALSE(profile_is_enough({kLeastProfileSteps - 1, kEnoughProfileNs * 9}));
  CHECK_FALSE(profile_is_enough({kLeastProfileSteps, kEnoughProfileNs - 1}));
  CHECK(profile_is_enough({kLeastProfileSteps, kEnoughProfileNs}));
  CHECK_FALSE(profile_is_enough({kMostProfileSteps - 1, 0}));
  CHECK(profile_is_enough({kMostProfileSteps, 0}));
}

TEST_CASE("profile_plan: a workload without steps is judged by what it has executed") {
  ProfileProgress progress{1000, kEnoughProfileNs - 1, 4, true};
  CHECK_FALSE(profile_is_enough(progress));
  progress.executed_ns = kEnoughProfileNs;
  CHECK(profile_is_enough(progress));
}

TEST_CASE("profile_plan: one that a task waits for does not wait for bubbles as long") {
  CHECK(profile_patience_ns(0, 30) == 10);
  CHECK(profile_patience_ns(kLeastProfileSteps, 30) == 10);
  CHECK(profile_patience_ns(kLeastProfileSteps + 1, 30) == 30);
}

TEST_CASE("profile_plan: a device without a trainer first, then the preferred one, then the fewest tasks") {
  std::vector<ProfileDevice> devices{device("a", 10, 2, true), device("b", 10, 1, true), device("c", 10, 5)};
  CHECK(place_profile(devices, 10, "a").worker == "c");
  devices.pop_back();
  CHECK(place_profile(devices, 10, "a").worker == "a");
  CHECK(place_profile(devices, 10, "").worker == "b");
}

TEST_CASE("profile_plan: not beside a process that may be a training without the hook, but beside one that is hooked") {
  std::vector<ProfileDevice> devices{device("a", 10), device("b", 10, 2, true)};
  devices[0].device.other_process = devices[1].device.other_process = true;
  CHECK(place_profile(devices, 10, "a").worker == "b");
  devices.pop_back();
  CHECK(place_profile(devices, 10, "a").worker.empty());
  CHECK(place_profile(devices, 10, "a").reason ==
        "a process that may be a training without the hook uses the GPU of a");
  devices[0].device.other_process = false;
  CHECK(place_profile(devices, 10, "").worker == "a");
}

TEST_CASE("profile_plan: not where another is taken, not on another model, not without room; and it says why") {
  std::vector<ProfileDevice> devices{device("a", 100 << 20)};
  CHECK(place_profile(devices, int64_t{200} << 20, "").reason == "needs 200 MiB, a has 100 MiB free");
  devices[0].profiling = true;
  CHECK(place_profile(devices, 10, "").worker.empty());
  CHECK(place_profile(devices, 10, "").reason == "another profile is being taken on a");
  devices[0].profiling = false;
  devices[0].right_model = false;
  CHECK(place_profile(devices, 10, "").reason == "no worker is there for it");
  CHECK(place_profile({}, 10, "a").reason == "no worker is there for it");
  devices[0] = device("a", -5);
  CHECK(place_profile(devices, 1 << 20, "").reason == "needs 1 MiB, a has 0 MiB free");
}

TEST_CASE("profile_plan: quantiles are values that were seen; of few, the larger neighbour") {
  CHECK(summarise({}).count == 0);
  CHECK(summarise({}).max_ns == 0);
  const auto one = summarise({7});
  CHECK(one.p50_ns == 7);
  CHECK(one.p99_ns == 7);
  const auto two = summarise({9, 1});
  CHECK(two.p50_ns == 9);
  CHECK(two.max_ns == 9);
  std::vector<int64_t> many;
  for (int64_t i = 101; i > 0; --i) many.push_back(i);
  const auto all = summarise(many);
  CHECK(all.count == 101);
  CHECK(all.p50_ns == 51);
  CHECK(all.p90_ns == 91);
  CHECK(all.p99_ns == 100);
  CHECK(all.max_ns == 101);
}

TEST_CASE("profile_plan: steps by which a task warms up do not count") {
  CHECK(warm_up_steps({}) == 0);
  CHECK(warm_up_steps({900, 3, 3}) == 0);
  CHECK(warm_up_steps({3, 3, 3, 3, 3, 3, 3, 3}) == 0);
  CHECK(warm_up_steps({900, 3, 3, 3, 3, 3, 3, 3, 3}) == 1);
  CHECK(warm_up_steps({900, 40, 20, 3, 3, 3, 3, 3, 3}) == 3);
  CHECK(warm_up_steps({3, 3, 3, 900, 3, 3, 3, 3}) == 0);  // a slow one in between is no warming up
  CHECK(warm_up_steps({8, 7, 6, 5, 4, 3, 2, 1}) == 4);    // still at it
  ProfileProgress progress{kLeastProfileSteps, 0, kLeastProfileSteps};
  CHECK(profile_is_enough(progress));
  progress.warm_up = 3;
  CHECK_FALSE(profile_is_enough(progress));
  progress.steps += 3;
  CHECK(profile_is_enough(progress));
  progress.warm_up = 5;
  progress.executed_ns = kMostWarmUpNs;
  CHECK(profile_is_enough(progress));  // it may never be steady
  progress = {kMostProfileSteps, 0, 0, false, kMostProfileSteps / 2 + 30};
  CHECK(profile_is_enough(progress));
  progress = {5, 0, 5, false, 2};
  CHECK(profile_is_enough(progress));  // the user's own number
}
