#include "batch_ledger.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <set>

namespace freeride::manager {
namespace {

using Given = BatchLedger::Given;

TEST_CASE("a ledger gives each item once, and is complete when all are done") {
  BatchLedger ledger(10, 3);
  const auto one = ledger.hand_out(1, 6), two = ledger.hand_out(2, 6);
  REQUIRE((one && two));
  CHECK((one->first == 0 && one->count == 6 && two->first == 6 && two->count == 4));
  CHECK_FALSE(ledger.hand_out(1, 6));
  CHECK(ledger.report(1, one->number, 4) == 4);
  CHECK(ledger.done() == 4);
  CHECK(ledger.report(1, one->number, 2) == 0);  // a late report takes nothing back
  CHECK(ledger.report(2, one->number, 6) == 0);  // nor does another's word count
  CHECK(ledger.report(1, one->number, 600) == 2);
  CHECK(ledger.report(1, one->number, 6) == 0);
  CHECK_FALSE(ledger.complete());
  CHECK(ledger.report(2, two->number, 4) == 4);
  CHECK(ledger.complete());
  CHECK(ledger.done() == 10);
}

TEST_CASE("a report of a later range says that the ranges before it are done") {
  BatchLedger ledger(30, 3);
  const auto first = ledger.hand_out(1, 10), second = ledger.hand_out(1, 10), other = ledger.hand_out(2, 10);
  CHECK(ledger.report(1, second->number, 3) == 13);
  CHECK(ledger.given_to(1).size() == 1);
  CHECK(ledger.given_to(2).size() == 1);
  (void)first, (void)other;
}

TEST_CASE("what a lost member had not done is given again, under another number") {
  BatchLedger ledger(100, 3);
  const auto one = ledger.hand_out(1, 60);
  ledger.report(1, one->number, 20);
  ledger.lose(1);
  CHECK(ledger.not_given() == 80);
  const auto again = ledger.hand_out(2, 1000);
  CHECK((again->first == 20 && again->count == 80 && again->number > one->number));
  CHECK(ledger.report(1, one->number, 60) == 0);
}

TEST_CASE("a range that ends its member is split until the item is alone, and fails after its tries") {
  BatchLedger ledger(1000, 3);
  const uint64_t poison = 137;
  int ends = 0;
  for (int64_t member = 1; !ledger.complete(); ++member) {
    for (bool alive = true; alive;) {
      const auto given = ledger.hand_out(member, 100);
      if (!given) break;
      for (uint64_t at = 0; at < given->count; at += 10) {
        const uint64_t count = std::min<uint64_t>(10, given->count - at), first = given->first + at;
        if (poison >= first && poison < first + count) {
          CHECK(ledger.fail(member, {given->number, at, count}, "crashed") == BatchLedger::Blame::kItems);
          ++ends;
          alive = false;
          break;
        }
        ledger.report(member, given->number, at + count);
      }
    }
  }
  CHECK(ledger.done() == 999);
  REQUIRE(ledger.failures().count(poison) == 1);
  CHECK(ledger.failures().at(poison).tries == 3);
  CHECK(ledger.failures().at(poison).reason == "crashed");
  CHECK(ends == 5);  // ten, two, and three times alone
  CHECK(ledger.crashes() == 5);
}

TEST_CASE("a member that ends before it has begun anything blames no item") {
  BatchLedger ledger(10, 1);
  const auto given = ledger.hand_out(1, 10);
  CHECK(ledger.fail(1, {}, "no module") == BatchLedger::Blame::kPlugin);
  CHECK(ledger.fail(1, {given->number, 0, 1}, "late") == BatchLedger::Blame::kPlugin);  // not its range any more
  CHECK(ledger.barren_ends() == 2);
  CHECK(ledger.failures().empty());
  CHECK(ledger.not_given() == 10);
}

TEST_CASE("of a member that has ended nothing is done but what it has said to be on disk") {
  BatchLedger ledger(20, 1);
  const auto first = ledger.hand_out(1, 10), second = ledger.hand_out(1, 10);
  ledger.report(1, first->number, 4);
  CHECK(ledger.fail(1, {second->number, 0, 1}, "signal 11") == BatchLedger::Blame::kItems);
  CHECK(ledger.done() == 4);
  CHECK(ledger.failures().size() == 1);
  CHECK(ledger.not_given() == 15);
}

TEST_CASE("a member's word about what it had begun cannot reach beyond its range") {
  BatchLedger ledger(20, 1);
  const auto given = ledger.hand_out(1, 10);
  ledger.report(1, given->number, 5);
  for (const BatchLedger::Doing lie : {BatchLedger::Doing{given->number, 4, 1},
                                       {given->number, 10, 1},
                                       {given->number, 9, 2},
                                       {given->number, 6, UINT64_MAX}}) {
    BatchLedger copy = ledger;
    CHECK(copy.fail(1, lie, "") == BatchLedger::Blame::kPlugin);
    CHECK(copy.left() == 15);
  }
}

TEST_CASE("a ledger on disk is the ledger that was written") {
  BatchLedger ledger(1'000'000, 2);
  ledger.hand_out(4, 100);
  const auto second = ledger.hand_out(5, 100);
  ledger.report(5, second->number, 7);
  const auto third = ledger.hand_out(6, 100);
  ledger.fail(6, {third->number, 10, 30}, "signal 11");
  ledger.fail(7, {ledger.hand_out(7, 1)->number, 0, 1}, "signal 11");
  for (int turn = 0; ledger.failures().empty(); ++turn) {
    REQUIRE(turn < 100);
    ledger.fail(7, {ledger.hand_out(7, 1)->number, 0, 1}, "signal 11");
  }
  const auto read = BatchLedger::decode(ledger.encode());
  REQUIRE(read.ok());
  CHECK(read->encode() == ledger.encode());
  CHECK(read->left() == ledger.left());
  CHECK(read->done() == ledger.done());
  for (const char* bad : {"", "ledger", "ledger 10 3 0 0 1\nopen 5 6\n", "ledger 10 3 0 0 1\ngiven 1 0 5 0 1\n",
                          "ledger 10 3 0 0 2\ngiven 1 0 5\n", "nonsense 1 1 1 1 1\n"})
    CHECK_FALSE(BatchLedger::decode(bad).ok());
}

TEST_CASE("a million items with members that end all the time: each is done or failed once, in few ranges") {
  std::mt19937_64 random(7);
  BatchLedger ledger(1'000'000, 3);
  std::set<uint64_t> poison;
  while (poison.size() < 200) poison.insert(random() % ledger.items());
  int64_t next_member = 1;
  std::vector<int64_t> members{1, 2, 3, 4};
  next_member = 5;
  size_t longest = 0;
  while (!ledger.complete()) {
    int64_t& member = members[random() % members.size()];
    auto given = ledger.given_to(member);
    if (given.empty()) {
      if (!ledger.hand_out(member, 2000)) continue;
      given = ledger.given_to(member);
    }
    const Given now = given.front();
    const uint64_t step = std::min<uint64_t>(now.count - now.done, 1 + random() % 500), from = now.first + now.done;
    if (random() % 20 == 0) {
      ledger.lose(member);
      member = next_member++;
    } else if (const auto hit = poison.lower_bound(from); hit != poison.end() && *hit < from + step) {
      ledger.fail(member, {now.number, now.done, step}, "crashed");
      member = next_member++;
    } else {
      CHECK(ledger.report(member, now.number, now.done + step) == step);
    }
    if (random() % 50 == 0) {
      const std::string text = ledger.encode();
      longest = std::max(longest, text.size());
      ledger = *BatchLedger::decode(text);
    }
  }
  CHECK(ledger.done() == ledger.items() - poison.size());
  std::set<uint64_t> failed;
  for (const auto& [item, failure] : ledger.failures()) failed.insert(item);
  CHECK(failed == poison);
  CHECK(longest < 64 << 10);
}

}  // namespace
}  // namespace freeride::manager
