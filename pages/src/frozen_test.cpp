// Pages between a process of version 1.0 (testing/frozen) and today's, in both directions: the rule of pages/README.md
// that pages grow at their end and are accepted for ever.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>

#include "freeride/pages/mapping.hpp"
#include "frozen/version_1.h"

namespace freeride::pages {
namespace {

// Numbers that version 1.0 has, by today's header.
using B = freeride_bubble_page;
constexpr std::tuple kBubbleNumbers{&B::rank,      &B::stage,        &B::stages,     &B::replica,
                                    &B::replicas,  &B::pid,          &B::state_word, &B::begin_ns,
                                    &B::wake,      &B::hook_state,   &B::iteration,  &B::waits,
                                    &B::relearned, &B::usable_bytes, &B::bubbles,    &B::compute_ns};
using L = freeride_lease_page;
constexpr std::tuple kLeaseNumbers{&L::sequence,  &L::order,    &L::kind,    &L::lease_id, &L::deadline_ns,
                                   &L::opened_ns, &L::grace_ns, &L::hang_ns, &L::begin_ns};
using A = freeride_answer_page;
constexpr std::tuple kAnswerNumbers{&A::sequence,      &A::state,         &A::transition,     &A::result,
                                    &A::lease_id,      &A::transition_ns, &A::last_paused_ns, &A::last_paused_cpu_ns,
                                    &A::steps,         &A::step_ns,       &A::lease_step_ns,  &A::predicted_ns,
                                    &A::skipped,       &A::create_ns,     &A::init_ns,        &A::first_step_ns,
                                    &A::pause_seen_ns, &A::finished};

// What version_1_fill() puts into a field, by today's header.
template <class Page, class Field>
uint64_t place(const Page& page, const Field& field) {
  return static_cast<uint64_t>(reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&page)) + 1;
}
template <class Field>
std::string text(const Field& field) {
  return reinterpret_cast<const char*>(&field);
}
template <class Field>
void name(Field& field, const char* with) {
  std::strcpy(reinterpret_cast<char*>(&field), with);
}

// Are these fields filled in as version_1_fill() does?
template <class Page, class Fields>
bool reads(const Page& page, const Fields& fields) {
  return std::apply([&](auto... field) { return ((page.*field == place(page, page.*field)) && ...); }, fields);
}
template <class Page, class Fields>
void store(Page& page, const Fields& fields) {
  const auto one = [&](auto& field) {
    field = static_cast<std::remove_reference_t<decltype(field)>>(place(page, field));
  };
  std::apply([&](auto... field) { (one(page.*field), ...); }, fields);
}

// Every byte of today's layout can be read, and those from `from` on are zero.
template <class Page>
bool rest_is_zero(const Page& page, size_t from) {
  const auto* bytes = reinterpret_cast<const volatile unsigned char*>(&page);
  bool zero = true;
  for (size_t i = from; i < sizeof(Page); ++i) zero = zero && bytes[i] == 0;
  return zero;
}

Fd made_by_version_1(version_1_kind kind) {
  Fd fd(version_1_make(kind, nullptr));
  REQUIRE(fd.valid());
  return fd;
}

}  // namespace

TEST_CASE("a page written by version 1's header is accepted for ever: bubble page") {
  SECTION("an old hook, a new worker") {
    const Fd fd = made_by_version_1(VERSION_1_BUBBLE);
    REQUIRE(version_1_fill(VERSION_1_BUBBLE, fd.get()) == 0);
    auto mapped = map_page<freeride_bubble_page>(fd.get());
    REQUIRE(mapped.ok());
    const auto& page = **mapped;
    CHECK(check_bubble_page(page).ok());
    CHECK(reads(page, kBubbleNumbers));
    CHECK(text(page.job) + " " + text(page.device) + " " + text(page.framework) == "job device framework");
    CHECK(text(page.learned) + " " + text(page.history) + " " + text(page.iterations) == "learned history iterations");
    CHECK(page.expected_ns == 0);
    CHECK(page.wanted_bytes == 0);
    CHECK(page.budget == 0);
    CHECK(page.held.periods == 0);
    CHECK(page.held_with_leases.periods == 0);
  }
  SECTION("a new hook, an old worker") {
    auto made = create_page<freeride_bubble_page>(true);
    REQUIRE(made.ok());
    auto& page = *made->page;
    store(page, kBubbleNumbers);
    name(page.job, "job");
    name(page.device, "device");
    name(page.framework, "framework");
    name(page.learned, "learned");
    name(page.history, "history");
    name(page.iterations, "iterations");
    page.expected_ns = page.wanted_bytes = page.budget = 1;
    page.held = page.held_with_leases = {1, 1, 1, 1};
    CHECK(version_1_refuses(VERSION_1_BUBBLE, made->fd.get()) == nullptr);
    CHECK(version_1_misses(VERSION_1_BUBBLE, made->fd.get()) == nullptr);
  }
}

TEST_CASE("a page written by version 1's header is accepted for ever: sent page") {
  char folder[] = "/tmp/freeride-frozen-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/freeride-sent-job";
  SECTION("an old rank makes it, a new one joins") {
    const Fd fd(version_1_make(VERSION_1_SENT, path.c_str()));
    REQUIRE(fd.valid());
    REQUIRE(version_1_join(fd.get(), 63, 7, 8, 9) == 0);
    auto mapped = open_sent_page(path);
    REQUIRE(mapped.ok());
    auto& page = **mapped;
    CHECK(mapped->page_bytes() == version_1_bytes(VERSION_1_SENT));
    CHECK(page.ranks == 64);
    CHECK(page.rank[63].pid == 7);
    CHECK(page.sent[63][63] == 9);
    CHECK(mapped->holds(&freeride_sent_page::sent));
    CHECK_FALSE(mapped->holds(&freeride_sent_page::world_rank));
    CHECK_FALSE(mapped->holds(&freeride_sent_page::met));
    CHECK(rest_is_zero(page, version_1_bytes(VERSION_1_SENT)));
    store_release(page.sent[0][63], 5u);
    CHECK(version_1_counter(fd.get(), 0, 63) == 5);
    page.met[63][63] = 1;  // nobody sees it, and nothing ends by it
  }
  SECTION("a new rank makes it, an old one joins") {
    auto mapped = create_sent_page(path);
    REQUIRE(mapped.ok());
    CHECK(mapped->holds(&freeride_sent_page::met));
    store_release((*mapped)->sent[0][63], 5u);
    const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    CHECK(version_1_refuses(VERSION_1_SENT, fd.get()) == nullptr);
    CHECK(version_1_counter(fd.get(), 0, 63) == 5);
    REQUIRE(version_1_join(fd.get(), 63, 7, 8, 9) == 0);
    CHECK((*mapped)->rank[63].start_time == 8);
    CHECK((*mapped)->sent[63][0] == 9);
    CHECK((*mapped)->world_rank[63] == 0);
  }
  SECTION("every size since then is accepted, and none before") {
    const size_t first = version_1_bytes(VERSION_1_SENT);
    const size_t with_world_rank = offsetof(freeride_sent_page, met);
    for (const size_t bytes : {first - 1, first, with_world_rank, sizeof(freeride_sent_page)}) {
      const Fd fd(version_1_make(VERSION_1_SENT, path.c_str()));
      REQUIRE(fd.valid());
      REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
      REQUIRE(pwrite(fd.get(), &bytes, sizeof(bytes), offsetof(freeride_page_header, size_bytes)) == sizeof(bytes));
      INFO(bytes);
      auto mapped = open_sent_page(path);
      CHECK(mapped.ok() == (bytes >= first));
      if (mapped.ok()) CHECK(mapped->holds(&freeride_sent_page::world_rank) == (bytes >= with_world_rank));
      unlink(path.c_str());
    }
  }
  unlink(path.c_str());
  rmdir(folder);
}

TEST_CASE("a page written by version 1's header is accepted for ever: lease page") {
  SECTION("an old worker, a new runner") {
    const Fd fd = made_by_version_1(VERSION_1_LEASE);
    REQUIRE(version_1_fill(VERSION_1_LEASE, fd.get()) == 0);
    auto mapped = map_page<freeride_lease_page>(fd.get());
    REQUIRE(mapped.ok());
    const auto& page = **mapped;
    CHECK(reads(page, kLeaseNumbers));
  }
  SECTION("a new worker, an old runner") {
    auto made = create_page<freeride_lease_page>(true);
    REQUIRE(made.ok());
    auto& page = *made->page;
    store(page, kLeaseNumbers);
    CHECK(version_1_refuses(VERSION_1_LEASE, made->fd.get()) == nullptr);
    CHECK(version_1_misses(VERSION_1_LEASE, made->fd.get()) == nullptr);
  }
}

TEST_CASE("a page written by version 1's header is accepted for ever: answer page") {
  SECTION("an old worker makes it, a new runner writes") {
    const Fd fd = made_by_version_1(VERSION_1_ANSWER);
    auto mapped = map_page_writable<freeride_answer_page>(fd.get());
    REQUIRE(mapped.ok());
    auto& page = **mapped;
    CHECK_FALSE(mapped->holds(&freeride_answer_page::saved_lease));
    CHECK(rest_is_zero(page, version_1_bytes(VERSION_1_ANSWER)));
    store(page, kAnswerNumbers);
    name(page.message, "message");
    name(page.metrics, "metrics");
    page.saved_lease = page.restored = 1;  // for nobody: an old worker grants no saving
    CHECK(version_1_misses(VERSION_1_ANSWER, fd.get()) == nullptr);
  }
  SECTION("a new worker makes it, an old runner writes") {
    auto made = create_page<freeride_answer_page>(false);
    REQUIRE(made.ok());
    CHECK(version_1_refuses(VERSION_1_ANSWER, made->fd.get()) == nullptr);
    REQUIRE(version_1_fill(VERSION_1_ANSWER, made->fd.get()) == 0);
    const auto& page = *made->page;
    CHECK(reads(page, kAnswerNumbers));
    CHECK(text(page.message) + " " + text(page.metrics) == "message metrics");
    CHECK(page.saved_lease == 0);
    CHECK(page.restored == 0);
  }
}

}  // namespace freeride::pages
