#include "daemon/rank_reasons.hpp"

#include <catch2/catch.hpp>

#include "acting/fake_pages_test_support.hpp"
#include "freeride/base/time.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::policy::RankWhy;
using freeride::worker::testing::FakeRank;

namespace {

constexpr int64_t kShortest = 200'000;

// Ranks 1, 2, … of one device, whose bubbles can be used.
struct Ranks {
  explicit Ranks(size_t count) {
    for (uint64_t id = 1; id <= count; ++id) {
      FakeRank& fake = pages[id];
      fake.page().waits = 1;
      fake.page().iteration = 20;
      fake.page().bubbles = 20;
      fake.page().learned[0].samples = 3;
      fake.learn(1, kShortest, kShortest, kShortest);
      AttachedRank& rank = attached[id];
      rank.id = id;
      rank.identity.job = "gpt";
      rank.source = fake.source(id);
    }
  }
  std::map<uint64_t, FakeRank> pages;
  std::map<uint64_t, AttachedRank> attached;
};

}  // namespace

TEST_CASE("a rank's reason is news once, from its page and from what its device has", "[rank_reasons]") {
  Ranks ranks(1);
  RankReasons reasons(kShortest);
  RankReasons::Device device;
  int64_t now_ns = kNsPerSec;
  const auto look = [&] { return reasons.look(ranks.attached, device, now_ns).size(); };
  CHECK(reasons.of(1) == RankWhy::kNone);
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kNoTask);
  CHECK(look() == 0);
  device.has_task = true;
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kTasksWait);
  PlanSet plans;
  policy::HoldoutPlan plan;
  plan.job = "gpt";
  plan.duty_pct = 1;
  plans.merge({plan});
  device.plans = &plans;
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kThrottled);
  reasons.harvested(1, now_ns);
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kHarvesting);
  now_ns += RankReasons::kLatelyNs;
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kThrottled);
  device.drained = true;
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kDrained);
  ranks.pages[1].page().hook_state = FREERIDE_HOOK_DISABLED;
  CHECK(look() == 1);
  CHECK(reasons.of(1) == RankWhy::kDisabled);
  ranks.attached.clear();
  CHECK(look() == 0);
  CHECK(reasons.of(1) == RankWhy::kNone);
}

TEST_CASE("that an idle phase has lasted a second, and that it is over, is news of its rank", "[rank_reasons]") {
  Ranks ranks(1);
  auto& page = ranks.pages[1].page();
  RankReasons reasons(kShortest);
  int64_t now_ns = 100 * kNsPerSec;
  const auto look = [&] { return reasons.look(ranks.attached, {}, now_ns).size(); };
  CHECK(look() == 1);
  page.phases[0].name[0] = 'a';
  page.idle_begin_ns = static_cast<uint64_t>(now_ns);
  page.idle_begun = FREERIDE_PHASE(1, 0);
  CHECK(look() == 0);
  now_ns += 2 * kNsPerSec;
  CHECK(look() == 1);
  CHECK(look() == 0);
  page.idle_begin_ns = static_cast<uint64_t>(now_ns);
  page.idle_begun = FREERIDE_PHASE(2, 0);
  now_ns += kNsPerSec;
  CHECK(look() == 1);  // another one of the same name
  page.idle_ended = 2;
  CHECK(look() == 1);
  CHECK(look() == 0);
}

TEST_CASE("bubbles that are learned, and shorter than a lease, are too short", "[rank_reasons]") {
  Ranks ranks(1);
  ranks.pages[1].learn(1, kShortest - 1, kShortest - 1, kShortest - 1);
  RankReasons reasons(kShortest);
  (void)reasons.look(ranks.attached, {}, 0);
  CHECK(reasons.of(1) == RankWhy::kTooShort);
}

TEST_CASE("ranks of one device are told that they share it", "[rank_reasons]") {
  Ranks ranks(2);
  RankReasons reasons(kShortest);
  RankReasons::Device device;
  device.has_task = true;
  CHECK(reasons.look(ranks.attached, device, 0) == std::vector<uint64_t>{1, 2});
  CHECK(reasons.of(2) == RankWhy::kSharedDevice);
  ranks.attached.erase(1);
  CHECK(reasons.look(ranks.attached, device, 0) == std::vector<uint64_t>{2});
  CHECK(reasons.of(2) == RankWhy::kTasksWait);
}

TEST_CASE("whatever a page holds, its rank has a reason", "[rank_reasons]") {
  Ranks ranks(1);
  auto& page = ranks.pages[1].page();
  page.waits = page.hook_state = page.noted = ~0U;
  page.iteration = page.bubbles = ~0ULL;
  RankReasons reasons(kShortest);
  (void)reasons.look(ranks.attached, {}, 0);
  CHECK(reasons.of(1) == RankWhy::kNoTask);
}
