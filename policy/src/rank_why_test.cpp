#include "freeride/policy/rank_why.hpp"

#include <catch2/catch.hpp>
#include <set>
#include <string>

using namespace freeride::policy;

namespace {

RankFacts learned(uint64_t iterations) {
  RankFacts facts;
  facts.iterations = iterations;
  facts.bubbles = 4 * iterations;
  facts.samples = 3;
  facts.usable = true;
  return facts;
}

RankWhy judged(const RankFacts& facts) {
  return RankJudge().judge(facts);
}

}  // namespace

TEST_CASE("every reason of a rank has one name and a sentence", "[rank_why]") {
  std::set<std::string> names;
  for (uint32_t i = 1; i < 100; ++i) {
    const auto why = static_cast<RankWhy>(i);
    if (*rank_why_name(why) == '\0') continue;
    CHECK(names.insert(rank_why_name(why)).second);
    CHECK(*rank_why_text(why) != '\0');
    CHECK(rank_why_of(rank_why_name(why)) == why);
  }
  CHECK(names.size() == 27);
  CHECK(rank_why_of("") == RankWhy::kNone);
  CHECK(rank_why_of("of_a_later_version") == RankWhy::kNone);
  CHECK(std::string(rank_why_name(RankWhy::kNone)).empty());
}

TEST_CASE("a rank without a bubble that can be used has one reason, from its first message to its learned lengths",
          "[rank_why]") {
  RankFacts facts;
  CHECK(judged(facts) == RankWhy::kNoMessages);
  facts.noted = static_cast<uint32_t>(RankWhy::kOtherGroups);
  CHECK(judged(facts) == RankWhy::kOtherGroups);
  facts.bubbles = 85;  // evaluation only
  CHECK(judged(facts) == RankWhy::kNoIterations);
  facts.iterations = 1;
  CHECK(judged(facts) == RankWhy::kLearning);
  facts.iterations = RankJudge::kLearnedBy;
  CHECK(judged(facts) == RankWhy::kLengthsVary);
  facts.samples = 3;
  CHECK(judged(facts) == RankWhy::kTooShort);
  facts.noted = static_cast<uint32_t>(RankWhy::kFewIterations);
  CHECK(judged(facts) == RankWhy::kFewIterations);
  facts.usable = true;
  CHECK(judged(facts) == RankWhy::kUsable);
}

TEST_CASE("a note that is no reason of the rank's process is not believed", "[rank_why]") {
  for (const uint32_t noted : {99U, ~0U, static_cast<uint32_t>(RankWhy::kUsable)}) {
    RankFacts facts;
    facts.noted = noted;
    CHECK(judged(facts) == RankWhy::kNoMessages);
  }
}

TEST_CASE("a hook that is off says whether it was asked to be", "[rank_why]") {
  auto facts = learned(20);
  facts.hook = RankFacts::Hook::kOff;
  CHECK(judged(facts) == RankWhy::kDisabled);
  facts.noted = static_cast<uint32_t>(RankWhy::kFailed);
  CHECK(judged(facts) == RankWhy::kFailed);
  facts.hook = RankFacts::Hook::kGone;
  CHECK(judged(facts) == RankWhy::kEnded);
}

TEST_CASE("lengths that are learned anew now and then are no reason", "[rank_why]") {
  RankJudge judge;
  CHECK(judge.judge(learned(100)) == RankWhy::kUsable);
  auto facts = learned(164);
  facts.usable = false;
  facts.samples = 0;
  CHECK(judge.judge(facts) == RankWhy::kUsable);
  ++facts.iterations;
  CHECK(judge.judge(facts) == RankWhy::kLengthsVary);
}

TEST_CASE("a rank whose bubbles can be used says whether a worker has it", "[rank_why]") {
  auto facts = learned(20);
  CHECK(judged(facts) == RankWhy::kUsable);
  facts.has_worker = false;
  CHECK(judged(facts) == RankWhy::kNoWorker);
  CHECK_FALSE(is_in_the_way(judged(facts)));
  CHECK(is_in_the_way(RankWhy::kNoMessages));
}

TEST_CASE("of a rank whose bubbles can be used, its worker says whether they are, or why not", "[rank_why]") {
  const auto of = [](const DeviceFacts& facts) { return with_device(RankWhy::kUsable, facts); };
  DeviceFacts facts;
  facts.duty_pct = 1;
  CHECK(of(facts) == RankWhy::kNoTask);
  facts.has_task = true;
  facts.shares_device = true;
  CHECK(of(facts) == RankWhy::kSharedDevice);
  facts.shares_device = false;
  CHECK(of(facts) == RankWhy::kThrottled);
  facts.duty_pct = 100;
  CHECK(of(facts) == RankWhy::kTasksWait);
  facts.harvested = facts.shares_device = true;
  CHECK(of(facts) == RankWhy::kHarvesting);
  facts.drained = true;
  CHECK(of(facts) == RankWhy::kDrained);
  CHECK(with_device(RankWhy::kNoMessages, facts) == RankWhy::kNoMessages);
}
