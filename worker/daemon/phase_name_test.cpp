#include "daemon/phase_name.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "acting/fake_pages_test_support.hpp"
#include "daemon/measures.hpp"
#include "daemon/report_news.hpp"
#include "freeride/base/clock.hpp"

using namespace freeride;
using namespace freeride::worker;
using freeride::worker::testing::FakeRank;

namespace {

constexpr uint32_t kRollout = FREERIDE_PHASE_WAIT(3);

void put_name(freeride_bubble_page& page, uint32_t slot, const std::string& bytes) {
  std::memset(page.phases[slot].name, 0, sizeof(page.phases[slot].name));
  std::memcpy(page.phases[slot].name, bytes.data(), std::min(bytes.size(), sizeof(page.phases[slot].name)));
}

struct Rank {
  Rank() {
    attached.id = 7;
    attached.identity.job = "gpt";
    attached.source = fake.source(7);
    put_name(fake.page(), 3, "rollout");
  }
  freeride_bubble_page& page() { return fake.page(); }
  FakeRank fake;
  AttachedRank attached;
};

}  // namespace

TEST_CASE("an idle phase's name is found by its wait, and is text or nothing", "[phases]") {
  Rank rank;
  CHECK(phase_name(rank.page(), kRollout) == "rollout");
  CHECK(phase_name(rank.page(), 3).empty());
  CHECK(phase_name(rank.page(), FREERIDE_PHASE_WAIT(0)).empty());
  CHECK(phase_name(rank.page(), FREERIDE_PHASE_WAIT(FREERIDE_MAX_PHASES)).empty());
  CHECK(phase_name(rank.page(), UINT32_MAX).empty());
  put_name(rank.page(), 3, "\u00fcbersicht");
  CHECK(phase_name(rank.page(), kRollout) == "\u00fcbersicht");
  for (const std::string& bad :
       {std::string(40, 'x'), std::string("a\nb"), std::string("a\x7f"), std::string("\xc3")}) {
    put_name(rank.page(), 3, bad);
    CHECK(phase_name(rank.page(), kRollout).empty());
  }
}

TEST_CASE("bubbles have the name of the idle phase that they are", "[phases]") {
  Rank rank;
  ActEvent event;
  event.wait = kRollout;
  CHECK(bubble_begin(rank.attached, event).phase == "rollout");
  CHECK(bubble_end(rank.attached, event).phase == "rollout");
  event.wait = 4;
  CHECK(bubble_begin(rank.attached, event).phase.empty());
  CHECK(bubble_end(rank.attached, event).phase.empty());
}

TEST_CASE("a rank's state has the idle phase that is under way once it has lasted a second", "[phases]") {
  Rank rank;
  auto& page = rank.page();
  page.hook_state = FREERIDE_HOOK_ACTIVE;
  const auto state = [&](int64_t now_ns) { return training_state(rank.attached, now_ns); };
  CHECK(state(10 * kNsPerSec).phase.empty());
  page.idle_begin_ns = 5 * kNsPerSec;
  page.idle_begun = FREERIDE_PHASE(2, 3);
  page.idle_ended = 1;
  CHECK(state(8 * kNsPerSec + 200 * kNsPerMs).phase == "rollout");
  CHECK(state(8 * kNsPerSec + 200 * kNsPerMs).phase_ms == 3200);
  CHECK(state(5 * kNsPerSec + 999 * kNsPerMs).phase.empty());
  CHECK(state(kNsPerSec).phase.empty());  // it begins in the future
  page.idle_begun = FREERIDE_PHASE(2, 200);
  CHECK(state(8 * kNsPerSec).phase.empty());
  page.idle_begun = FREERIDE_PHASE(2, 3);
  page.hook_state = FREERIDE_HOOK_GONE;
  CHECK(state(8 * kNsPerSec).phase.empty());
  page.hook_state = FREERIDE_HOOK_ACTIVE;
  page.idle_ended = 2;
  CHECK(state(8 * kNsPerSec).phase.empty());
}

TEST_CASE("a report has a rank's idle phases by name, as parts of its bubbles", "[phases]") {
  ReportNews news;
  bus::BubbleEnd end;
  end.job = "gpt";
  end.begin_ns = kNsPerSec;
  end.end_ns = 3 * kNsPerSec;
  end.harvested_ns = kNsPerSec;
  news.add_bubble(7, end);
  end.phase = "rollout";
  end.leased = true;
  end.overrun_ns = 5;
  news.add_bubble(7, end);
  end.holdout = true;
  end.leased = false;
  news.add_bubble(7, end);
  bus::WorkerReport report;
  news.take_into(report);
  REQUIRE(report.bubbles.size() == 1);
  CHECK(report.bubbles[0].bubbles == 3);
  CHECK(report.bubbles[0].bubble_ns == 4 * kNsPerSec);
  REQUIRE(report.bubbles[0].phases.size() == 1);
  const bus::PhaseTotals& phase = report.bubbles[0].phases[0];
  CHECK(phase.phase == "rollout");
  CHECK(phase.count == 2);
  CHECK(phase.idle_ns == 2 * kNsPerSec);
  CHECK(phase.harvested_ns == kNsPerSec);
  CHECK(phase.holdout_idle_ns == 2 * kNsPerSec);
  CHECK(phase.overruns_ns == std::vector<int64_t>{5});
}

TEST_CASE("a report's idle phases are bounded, whatever names a page has one after the other", "[phases]") {
  ReportNews news;
  bus::BubbleEnd end;
  end.leased = true;
  for (int n = 0; n < 1000; ++n) {
    end.phase = "name" + std::to_string(n % 100);
    news.add_bubble(7, end);
  }
  end.phase = "name1";
  for (int n = 0; n < 1000; ++n) news.add_bubble(7, end);
  bus::WorkerReport report;
  news.take_into(report);
  CHECK(report.bubbles[0].bubbles == 2000);
  CHECK(report.bubbles[0].phases.size() == FREERIDE_MAX_PHASES);
  for (const auto& phase : report.bubbles[0].phases) CHECK(phase.overruns_ns.size() <= 256);
}
