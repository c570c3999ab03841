#include "rank_page.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <thread>

#include "freeride/base/clock.hpp"

namespace freeride::hooks {
namespace {

std::unique_ptr<RankPage> make() {
  RankIdentity identity;
  identity.job = "job";
  identity.device = "cpu-0";
  identity.stages = 2;
  auto made = RankPage::create(identity);
  REQUIRE(made.ok());
  return std::move(*made);
}

// One iteration with waits of these lengths, 1 ms of compute before each; returns the time after it.
int64_t iterate(RankPage& rank, int64_t now, const std::vector<int64_t>& lengths_ns) {
  for (const int64_t length : lengths_ns) {
    rank.begin(now += kNsPerMs);
    rank.end(now += length);
  }
  rank.finish_iteration(now += kNsPerMs);
  return now;
}

}  // namespace

TEST_CASE("a hook that was handed a bell rings it after every change, until its worker is gone") {
  auto rank = make();
  const auto& page = rank->page();
  const auto first = std::move(pages::create_page<freeride_bell_page>(false).value());
  const auto second = std::move(pages::create_page<freeride_bell_page>(false).value());
  CHECK(page.bell == 0);
  rank->begin(1000);
  for (const auto* bell : {&first, &second}) {
    uint32_t wake = page.wake;
    REQUIRE(rank->ring(bell->fd.get()).ok());
    CHECK(page.bell == bell->page->header.incarnation);
    CHECK(page.wake == ++wake);
    uint32_t rings = bell->page->rings;
    CHECK(rings == 1);  // a change just before has woken the page's word only
    rank->end(4000);
    rank->begin(5000);
    rank->finish_iteration(6000);
    rank->switch_off(FREERIDE_HOOK_DISABLED);
    rank->switch_on();
    CHECK(bell->page->rings == rings + page.wake - wake);
    rank->finish_iteration(7000);
    rank->begin(8000);
  }
  const uint32_t heard = first.page->rings;
  rank->ring_none();
  CHECK(page.bell == 0);
  const uint32_t rings = second.page->rings;
  rank->end(9000);
  CHECK(second.page->rings == rings);
  CHECK(first.page->rings == heard);  // nobody rings the bell of a worker that has gone
}

TEST_CASE("what is no bell is not rung") {
  auto rank = make();
  const auto lease = std::move(pages::create_page<freeride_lease_page>(false).value());
  const auto sealed = std::move(pages::create_page<freeride_bell_page>(true).value());
  CHECK_FALSE(rank->ring(lease.fd.get()).ok());
  CHECK_FALSE(rank->ring(sealed.fd.get()).ok());
  CHECK_FALSE(rank->ring(-1).ok());
  CHECK(rank->page().bell == 0);
  rank->begin(1000);
  CHECK(rank->page().wake == 1);
}

TEST_CASE("marks are on the page") {
  auto rank = make();
  const auto& page = rank->page();
  CHECK(page.hook_state == FREERIDE_HOOK_STARTING);
  uint32_t wake = page.wake;
  rank->begin(1000);
  CHECK(page.state_word == FREERIDE_STATE(0, 1));
  CHECK(page.begin_ns == 1000);
  CHECK(page.wake == ++wake);
  rank->end(4000);
  CHECK(page.state_word == FREERIDE_STATE(0, 0));
  CHECK(page.wake == ++wake);
  REQUIRE(page.bubbles == 1);
  CHECK(page.history[0].state_word == FREERIDE_STATE(0, 1));
  CHECK(page.history[0].begin_ns == 1000);
  CHECK(page.history[0].end_ns == 4000);
  CHECK(page.history[0].learned_low_ns == 0);
  rank->begin(5000);
  CHECK(page.state_word == FREERIDE_STATE(0, 2));
  rank->end(5500);
  rank->finish_iteration(6000);
  CHECK(page.hook_state == FREERIDE_HOOK_ACTIVE);
  CHECK(page.iteration == 1);
  CHECK(page.waits == 2);
  CHECK(page.state_word == FREERIDE_STATE(1, 0));
  CHECK(page.iterations[0].iteration == 0);
  CHECK(page.iterations[0].end_ns == 6000);
  CHECK(page.iterations[0].bubble_ns == 3500);
}

TEST_CASE("lengths are learned and promised") {
  auto rank = make();
  const auto& page = rank->page();
  int64_t now = SteadyClock::now();
  for (int i = 0; i < 5; ++i) now = iterate(*rank, now, {20 * kNsPerMs, 5 * kNsPerMs});
  CHECK(page.learned[0].low_ns > 19'000'000);
  CHECK(page.learned[0].low_ns <= 20'000'000);
  CHECK(page.learned[0].samples == 5);
  CHECK(page.learned[0].type == 'B');  // stage 0 waits for backwards only
  CHECK(page.learned[1].mid_ns == 5'000'000);
  CHECK(page.learned[2].low_ns == 0);
  CHECK(page.compute_ns == 12'000'000);  // the first iteration is not counted
  rank->begin(now);
  rank->end(now + 1000);
  CHECK(page.history[10].learned_low_ns == page.learned[0].low_ns);
  CHECK(page.relearned == 0);
  rank->finish_iteration(now += 2000);
  for (int i = 0; i < 4; ++i) now = iterate(*rank, now, {kNsPerMs, kNsPerMs, kNsPerMs});
  CHECK(page.relearned >= 1);
  CHECK(page.learned[2].samples > 0);
  for (int i = 0; i < 2; ++i) now = iterate(*rank, now, {kNsPerMs});
  CHECK(page.learned[2].low_ns == 0);
}

TEST_CASE("marks that do not pair leave no bubble open") {
  auto rank = make();
  const auto& page = rank->page();
  rank->end(10);
  CHECK(page.bubbles == 0);
  rank->begin(20);
  rank->begin(30);
  CHECK(page.begin_ns == 20);
  rank->end(40);
  CHECK(page.state_word == 0);
  rank->end(50);
  CHECK(page.bubbles == 1);
  rank->begin(60);
  rank->finish_iteration(70);
  CHECK(page.state_word == FREERIDE_STATE(1, 0));
  CHECK(page.bubbles == 2);
}

TEST_CASE("only the training loop's thread marks") {
  auto rank = make();
  rank->begin(10);
  std::thread([&] { rank->end(20); }).join();
  CHECK(rank->page().state_word == FREERIDE_STATE(0, 1));
  rank->end(30);
  std::thread([&] { rank->begin(40); }).join();
  CHECK(rank->page().state_word == 0);
  std::thread([&] {  // the loop has moved
    rank->finish_iteration(50);
    rank->begin(60);
  })
      .join();
  CHECK(rank->page().state_word == FREERIDE_STATE(1, 1));
}

TEST_CASE("switched off: the state word is 0 for good, iterations are counted") {
  auto rank = make();
  const auto& page = rank->page();
  int64_t now = iterate(*rank, SteadyClock::now(), {kNsPerMs});
  rank->begin(now);
  rank->switch_off(FREERIDE_HOOK_DISABLED);
  CHECK(page.state_word == 0);
  CHECK(page.hook_state == FREERIDE_HOOK_DISABLED);
  rank->end(now + 10);
  CHECK(page.state_word == 0);
  rank->begin(now + 20);
  CHECK(page.state_word == 0);
  now = iterate(*rank, now, {kNsPerMs});
  CHECK(page.state_word == 0);
  CHECK(page.iteration == 2);  // ranks must go on agreeing on its number
  CHECK(page.hook_state == FREERIDE_HOOK_DISABLED);

  SECTION("and on again, from the next whole iteration") {
    rank->begin(now);  // not counted
    rank->end(now);
    rank->switch_on();
    CHECK(page.hook_state == FREERIDE_HOOK_STARTING);
    rank->begin(now);
    CHECK(page.state_word == 0);
    rank->end(now);
    rank->finish_iteration(now);
    CHECK(page.hook_state == FREERIDE_HOOK_ACTIVE);
    rank->begin(now);
    CHECK(page.state_word == FREERIDE_STATE(3, 1));
  }
}

TEST_CASE("a switch-off that meets marks always wins") {
  for (int round = 0; round < 200; ++round) {
    auto rank = make();
    std::atomic<bool> stop{false}, started{false};
    std::thread marks([&] {
      for (int64_t now = 1; !stop; now += 10) {
        rank->begin(now);
        rank->end(now + 1);
        if (now % 70 == 1) rank->finish_iteration(now + 2);
        started = true;
      }
    });
    while (!started) std::this_thread::yield();
    rank->switch_off(FREERIDE_HOOK_DISABLED);
    stop = true;
    marks.join();
    CHECK(rank->page().state_word == 0);
    CHECK(rank->page().hook_state == FREERIDE_HOOK_DISABLED);
  }
}

TEST_CASE("numbers that are left out are of no iteration, and nothing is learned for them") {
  auto rank = make();
  const auto& page = rank->page();
  int64_t now = 1000;
  for (int i = 0; i < 4; ++i) now = iterate(*rank, now, {5 * kNsPerMs});
  const uint64_t low_ns = page.learned[0].low_ns;
  REQUIRE(low_ns > 0);
  rank->begin(now += kNsPerMs);
  CHECK(rank->finish_iteration(now += 50 * kNsPerMs, 20) == 20);
  CHECK(page.iteration == 20);
  CHECK(page.state_word == FREERIDE_STATE(20, 0));
  CHECK(page.iterations[4].end_ns == 0);
  CHECK(page.iterations[19].end_ns == 0);
  CHECK(page.learned[0].low_ns == low_ns);
  now = iterate(*rank, now, {5 * kNsPerMs});
  CHECK(page.iteration == 21);
  CHECK(page.iterations[20].iteration == 20);
  CHECK(rank->finish_iteration(now += kNsPerMs, 3) == 22);
}

TEST_CASE("more waits than can be learned, and than have a number") {
  auto rank = make();
  for (int i = 0; i < 70'000; ++i) {
    rank->begin(i);
    rank->end(i);
  }
  CHECK(rank->page().bubbles == FREERIDE_PHASE_WAIT(0) - 1);
  rank->finish_iteration(80'000);
  CHECK(rank->page().waits == FREERIDE_PHASE_WAIT(0) - 1);
  rank->finish_iteration(80'001);
  CHECK(rank->page().iteration == 2);
}

TEST_CASE("texts are cut and cleaned") {
  RankIdentity identity;
  identity.job = std::string(62, 'j') + "\xc3\xa9";  // 'é' would be cut in half
  identity.device = "cpu-0";
  identity.framework = "a\nb";
  auto made = RankPage::create(identity);
  REQUIRE(made.ok());
  CHECK(std::strlen((*made)->page().job) == 62);
  CHECK(std::string((*made)->page().framework) == "a?b");
  identity.stage = 1;
  CHECK_FALSE(RankPage::create(identity).ok());
  identity.stage = 0;
  identity.job.clear();
  CHECK_FALSE(RankPage::create(identity).ok());
}

TEST_CASE("external marks: what was written is noticed, timed and learned") {
  auto rank = make();
  auto& page = rank->page();
  int64_t now = 1'000'000;
  for (uint64_t iteration = 0; iteration < 6; ++iteration) {
    for (uint32_t wait = 1; wait <= 2; ++wait) {
      page.state_word = FREERIDE_STATE(iteration, wait);
      CHECK(rank->observe(now));
      CHECK_FALSE(rank->observe(now + 10));
      CHECK(page.begin_ns == static_cast<uint64_t>(now));
      now += wait * 3 * kNsPerMs;
      page.state_word = FREERIDE_STATE(iteration, 0);
      CHECK(rank->observe(now));
      now += kNsPerMs;
    }
  }
  CHECK(page.iteration == 5);
  CHECK(page.bubbles == 12);
  CHECK(page.hook_state == FREERIDE_HOOK_ACTIVE);
  CHECK(page.learned[1].mid_ns == 6'000'000);
  // Looks are coarse in the middle of a bubble and close near its learned end.
  page.state_word = FREERIDE_STATE(6, 2);
  rank->observe(now);
  const auto look = [&](int64_t at, bool leases) { return rank->next_look(at, leases) - at; };
  CHECK(look(now, true) == 500'000);
  const auto low = static_cast<int64_t>(page.learned[1].low_ns);
  CHECK(look(now + low - 100'000, true) == 50'000);
  CHECK(look(now + low - 10'000, true) == 15'000);
  CHECK(look(now + low, true) == 50'000);
  CHECK(look(now + 5 * kNsPerSec, true) == 10'000'000);
}

TEST_CASE("neither leases nor the bound of a hold follow the long waits, which may be holds that were ended at it") {
  auto rank = make();
  rank->set_leases(3 * kNsPerMs, kNsPerMs);
  auto& page = rank->page();
  int64_t now = 1'000'000;
  for (uint64_t iteration = 0; iteration < 18; ++iteration) {
    page.state_word = FREERIDE_STATE(iteration, 1);
    rank->observe(now);
    now += (iteration % 2 == 0 ? 1000 : 100) * kNsPerMs;
    page.state_word = FREERIDE_STATE(iteration, 2);
    rank->observe(now);
    now += 2 * kNsPerMs;  // too short for a lease
    page.state_word = FREERIDE_STATE(iteration, 0);
    rank->observe(now);
    now += kNsPerMs;
  }
  CHECK(page.learned[0].low_ns > 96 * kNsPerMs);
  CHECK(page.learned[0].low_ns <= 99 * kNsPerMs);
  CHECK(page.learned[0].high_ns == page.learned[0].low_ns);  // no lease follows the bubble
  CHECK(rank->high_ns(1) == static_cast<int64_t>(page.learned[0].low_ns));
  CHECK(page.learned[1].low_ns == 0);
  CHECK(rank->high_ns(2) == 0);
}

TEST_CASE("what holds cost stands on the page in millionths, and only when it is measured") {
  auto made = RankPage::create({"job", "cpu-0", "", 0, 0, 1, 0, 1, std::nullopt});
  REQUIRE(made.ok());
  const auto& page = (*made)->page();
  policy::ArmCost held{true, -0.243, -0.381, -0.105, 12};
  (*made)->set_hold_costs(held, {});
  CHECK(page.held.increase_ppm == -2430);
  CHECK(page.held.low_ppm == -3810);
  CHECK(page.held.high_ppm == -1050);
  CHECK(page.held.periods == 12);
  CHECK(page.held_with_leases.periods == 0);
  held = {true, 1e300, -1e300, 1e300, 12};
  (*made)->set_hold_costs(held, held);
  CHECK(page.held.increase_ppm == 1'000'000'000);
  CHECK(page.held_with_leases.low_ppm == -1'000'000'000);
}

TEST_CASE("external marks: looks are close where the next wait usually begins, and the worker is told before") {
  auto rank = make();
  auto& page = rank->page();
  int64_t now = 1'000'000, end = 0;
  const auto bubble = [&](uint64_t iteration, uint32_t wait) {
    page.state_word = FREERIDE_STATE(iteration, wait);
    rank->observe(now);
    end = now += 4 * kNsPerMs;
    page.state_word = FREERIDE_STATE(iteration, 0);
    rank->observe(now);
  };
  // From `from` on: when it first looks without sleeping, as a time after it; 0: not within 40 ms.
  const auto awake = [&](int64_t from, bool leases = true) -> int64_t {
    for (int64_t at = from; at < from + 40 * kNsPerMs;) {
      const int64_t next = rank->next_look(at, leases);
      if (next == at) return at - from;
      REQUIRE(next > at);
      REQUIRE(next - at <= kNsPerMs);
      at = next;
    }
    return 0;
  };
  for (uint64_t iteration = 0; iteration < 20; ++iteration) {
    now += (20 + static_cast<int64_t>(iteration % 3)) * kNsPerMs;  // 20, 21 or 22 ms of computing
    bubble(iteration, 1);
    now += 5 * kNsPerMs;
    if (iteration % 2 == 0) bubble(iteration, 2);  // else its data was there
    now += 7 * kNsPerMs;
    bubble(iteration, 3);
    page.state_word = FREERIDE_STATE(iteration + 1, 0);
    rank->observe(now);
  }
  CHECK(awake(end, false) == 0);  // where no leases are given nothing depends on it
  const uint32_t wake = page.wake;
  const int64_t begin = awake(end);
  CHECK(begin > 19 * kNsPerMs);  // looking early is paid for in every wait
  CHECK(begin < 20 * kNsPerMs);
  CHECK(page.expected_ns > static_cast<uint64_t>(end + 22 * kNsPerMs));
  CHECK(page.expected_ns < static_cast<uint64_t>(end + 25 * kNsPerMs));
  CHECK(page.wake == wake + 1);  // once
  // Behind it, looks are coarse again.
  CHECK(rank->next_look(static_cast<int64_t>(page.expected_ns), true) ==
        static_cast<int64_t>(page.expected_ns) + 500'000);
  // After wait 1 comes wait 2, or wait 3 if the data of wait 2 is there; after wait 2 wait 3.
  now += 20 * kNsPerMs;
  bubble(20, 1);
  const int64_t second = awake(end);
  CHECK(second > 4 * kNsPerMs);
  CHECK(second < 5 * kNsPerMs);
  const int64_t third = awake(end + 6 * kNsPerMs);
  CHECK(third > 5 * kNsPerMs);
  CHECK(third < 6 * kNsPerMs);
  now += 5 * kNsPerMs;
  bubble(20, 2);
  const int64_t after_second = awake(end);
  CHECK(after_second > 6 * kNsPerMs);
  CHECK(after_second < 7 * kNsPerMs);
  // A pause of training's is no time of computing.
  page.state_word = FREERIDE_STATE(21, 0);
  rank->observe(now);
  now += 20 * kNsPerSec;
  bubble(21, 3);
  now += 20 * kNsPerMs;
  bubble(21, 1);
  now += 5 * kNsPerMs;
  bubble(21, 2);
  CHECK(awake(end) == after_second);
}

}  // namespace freeride::hooks
