#include "idle_phases.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "freeride/base/clock.hpp"

namespace freeride::hooks {
namespace {

constexpr int64_t kSec = kNsPerSec;

std::unique_ptr<RankPage> make_page() {
  RankIdentity identity;
  identity.job = "job";
  identity.device = "cpu-0";
  auto made = RankPage::create(identity);
  REQUIRE(made.ok());
  return std::move(*made);
}

bool is_open(const freeride_bubble_page& page) {
  return FREERIDE_PHASE_NUMBER(page.idle_begun) > page.idle_ended;
}

IdlePhases::Wish named(std::string_view name) {
  IdlePhases::Wish wish;
  wish.name = name;
  return wish;
}

uint64_t begun(IdlePhases& phases, const IdlePhases::Wish& wish, int64_t now_ns) {
  const auto word = phases.begin(wish, now_ns);
  REQUIRE(word.ok());
  return FREERIDE_PHASE_NUMBER(*word);
}

}  // namespace

TEST_CASE("a phase is under way from its begin to its end, and stands in the history after it") {
  auto rank = make_page();
  IdlePhases phases(*rank);
  const auto& page = rank->page();
  auto wish = named("rollout");
  wish.expected_ns = 5 * kSec;
  const uint64_t number = begun(phases, wish, 100 * kSec);
  CHECK(number == 1);
  CHECK(is_open(page));
  CHECK(page.idle_begin_ns == 100 * kSec);
  CHECK(page.idle_expected_ns == 5 * kSec);
  CHECK(page.idle_flags == 0);
  CHECK(phases.name() == "rollout");
  CHECK(std::string(page.phases[0].name) == "rollout");
  const uint32_t wake = page.wake;
  CHECK(phases.end(number, 103 * kSec));
  CHECK_FALSE(is_open(page));
  CHECK(page.wake != wake);
  CHECK(phases.under_way() == 0);
  CHECK(page.phases[0].count == 1);
  CHECK(page.phases[0].total_ns == 3 * kSec);
  REQUIRE(page.bubbles == 1);
  CHECK(page.history[0].state_word == FREERIDE_STATE(0, FREERIDE_PHASE_WAIT(0)));
  CHECK(page.history[0].begin_ns == 100 * kSec);
  CHECK(page.history[0].end_ns == 103 * kSec);
  CHECK(page.history[0].learned_low_ns == 5 * kSec);
  CHECK_FALSE(phases.end(number, 104 * kSec));
  CHECK(page.phases[0].count == 1);
}

TEST_CASE("a phase within another, or with a name that is none, is refused and changes nothing") {
  auto rank = make_page();
  IdlePhases phases(*rank);
  const uint64_t outer = begun(phases, named("rollout"), kSec);
  CHECK_FALSE(phases.begin(named("save"), 2 * kSec).ok());
  CHECK(phases.under_way() == outer);
  CHECK_FALSE(phases.end(outer + 1, 2 * kSec));
  CHECK(phases.end(outer, 3 * kSec));
  const std::string too_long(32, 'x');
  for (const std::string& name : {std::string(), too_long, std::string("a\nb"), std::string("\xff")}) {
    CHECK_FALSE(phases.begin(named(name), 4 * kSec).ok());
    CHECK(phases.under_way() == 0);
  }
  for (int i = 1; i < static_cast<int>(FREERIDE_MAX_PHASES); ++i) {
    const std::string name = "phase " + std::to_string(i);
    CHECK(phases.end(begun(phases, named(name), (4 + i) * kSec), (4 + i) * kSec + 1));
  }
  CHECK_FALSE(phases.begin(named("one more"), 40 * kSec).ok());
  CHECK(phases.begin(named("phase 15"), 41 * kSec).ok());
}

TEST_CASE("lengths are learned by name, and not of open ones") {
  auto rank = make_page();
  IdlePhases phases(*rank);
  const auto& page = rank->page();
  int64_t now = kSec;
  for (int i = 0; i < 12; ++i) {
    for (const auto& [name, length] :
         std::vector<std::pair<std::string, int64_t>>{{"rollout", 4 * kSec}, {"save", kSec}}) {
      const uint64_t number = begun(phases, named(name), now);
      CHECK(phases.end(number, now += length));
      now += kSec / 2;
    }
    auto wish = named("server");
    wish.open = true;
    const uint64_t number = begun(phases, wish, now);
    CHECK(page.idle_flags == FREERIDE_PHASE_OPEN);
    CHECK(phases.end(number, now += kSec));
  }
  CHECK(page.phases[0].learned.samples == 12);
  CHECK(page.phases[0].learned.low_ns > 39 * kSec / 10);
  CHECK(page.phases[0].learned.low_ns <= 4 * kSec);
  CHECK(page.phases[1].learned.low_ns > 9 * kSec / 10);
  CHECK(page.phases[1].learned.low_ns <= kSec);
  CHECK(page.phases[2].learned.samples == 0);
  CHECK(page.phases[2].count == 12);
  CHECK(page.phases[0].apart_ns == 3 * kSec);  // half a second, a save, half a second, a server
}

TEST_CASE("a phase of a GPU begins when the GPU has come to it, and never if training was first to end it") {
  auto rank = make_page();
  IdlePhases phases(*rank);
  auto& page = rank->page();
  auto wish = named("rollout");
  wish.by_gpu = true;
  auto word = phases.begin(wish, kSec);
  REQUIRE(word.ok());
  CHECK(phases.awaits_gpu());
  phases.observe(2 * kSec);
  CHECK_FALSE(is_open(page));
  page.idle_marked = *word;  // as the GPU does
  phases.observe(3 * kSec);
  CHECK(is_open(page));
  CHECK(page.idle_begin_ns == 3 * kSec);
  CHECK_FALSE(phases.awaits_gpu());
  CHECK(phases.end(FREERIDE_PHASE_NUMBER(*word), 5 * kSec));
  CHECK(page.phases[0].total_ns == 2 * kSec);

  word = phases.begin(wish, 6 * kSec);
  REQUIRE(word.ok());
  CHECK(phases.end(FREERIDE_PHASE_NUMBER(*word), 7 * kSec));
  page.idle_marked = *word;
  phases.observe(8 * kSec);
  CHECK_FALSE(is_open(page));
  CHECK(page.phases[0].count == 1);
}

TEST_CASE("the name that comes round is the first one, or what comes again and again without it") {
  auto rank = make_page();
  IdlePhases phases(*rank);
  int64_t now = kSec;
  const auto comes = [&](std::string_view name) {
    const bool round = phases.comes_round(named(name));
    CHECK(phases.end(begun(phases, named(name), now), now + 1));
    now += kSec;
    return round;
  };
  CHECK(comes("load"));  // at the start only
  for (int i = 0; i < 3; ++i) CHECK_FALSE(comes("rollout"));
  CHECK(comes("rollout"));
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(comes("save"));
    CHECK_FALSE(comes("save"));
    CHECK(comes("rollout"));
  }
}

TEST_CASE("a phase's time is no compute, and counts among an iteration's bubbles") {
  auto rank = make_page();
  IdlePhases phases(*rank);
  const auto& page = rank->page();
  int64_t now = SteadyClock::now();
  rank->finish_iteration(now);
  const uint64_t number = begun(phases, named("save"), now + kSec);
  CHECK(phases.end(number, now + 4 * kSec));
  rank->begin(now + 5 * kSec);
  rank->end(now + 6 * kSec);
  rank->finish_iteration(now + 8 * kSec);
  CHECK(page.compute_ns == 4 * kSec);  // 1 before and 1 after the phase, 2 after the wait
  CHECK(page.iterations[1].bubble_ns == 4 * kSec);
}

}  // namespace freeride::hooks
