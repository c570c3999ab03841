#include "freeride/policy/probe.hpp"

#include <catch2/catch.hpp>
#include <vector>

using namespace freeride::policy;

namespace {

constexpr int64_t kMs = 1'000'000, kT = 1'000 * kMs, kBusy = kMs;

ProbeOutcome judge(int64_t began_ns, int64_t ended_ns, int64_t gap_ns, int64_t until_ns) {
  return judge_probe({kT, began_ns, began_ns, ended_ns, gap_ns}, until_ns, kBusy);
}

}  // namespace

TEST_CASE("probe: begins at once, ends, sees no gap: clean", "[probe]") {
  CHECK(judge(kT + kMs / 10, kT + kMs / 2, 100, kT + 2 * kMs) == ProbeOutcome::kClean);
}

TEST_CASE("probe: begins a time slice late, or not at all while the bubble lasts: found", "[probe]") {
  CHECK(judge(kT + 2 * kMs, kT + 3 * kMs, 0, kT + 4 * kMs) == ProbeOutcome::kFound);
  CHECK(judge(0, 0, 0, kT + 2 * kMs) == ProbeOutcome::kFound);
  CHECK(judge(kT + kMs / 10, kT + 3 * kMs, 2 * kMs, kT + 4 * kMs) == ProbeOutcome::kFound);
}

TEST_CASE("probe: what training may have done is unknown, never found", "[probe]") {
  CHECK(judge(0, 0, 0, kT + kMs / 2) == ProbeOutcome::kUnknown);                           // too short to tell
  CHECK(judge(kT + kMs / 10, kT + 3 * kMs, 2 * kMs, kT + kMs) == ProbeOutcome::kUnknown);  // the gap may be training's
  CHECK(judge(kT + 5 * kMs, kT + 6 * kMs, 0, kT + kMs / 2) == ProbeOutcome::kUnknown);
  CHECK(judge_probe({}, kT, kBusy) == ProbeOutcome::kUnknown);                                    // no answer
  CHECK(judge_probe({kT, kT + 1, kT + 1, 0, 0}, kT + 5 * kMs, kBusy) == ProbeOutcome::kUnknown);  // the probe has died
  CHECK(judge_probe({kT + 5 * kMs, 0, 0, 0, 0}, kT, kBusy) == ProbeOutcome::kUnknown);
}

TEST_CASE("probe: whose process got no core, so that nobody knows when it began, is unknown", "[probe]") {
  CHECK(judge_probe({kT, kT + 1, kT + 2 * kMs, kT + 3 * kMs, 0}, kT + 4 * kMs, kBusy) == ProbeOutcome::kUnknown);
  CHECK(judge_probe({kT, kT + 2 * kMs, kT + 3 * kMs, kT + 3 * kMs, 0}, kT + 4 * kMs, kBusy) == ProbeOutcome::kFound);
}

TEST_CASE("probe: one bubble in so many, another choice with another secret", "[probe]") {
  size_t chosen = 0, both = 0;
  for (uint64_t bubble = 0; bubble < 32'000; ++bubble) {
    chosen += is_probed(1, bubble, 32);
    both += is_probed(1, bubble, 32) && is_probed(2, bubble, 32);
  }
  CHECK(chosen > 850);
  CHECK(chosen < 1'150);
  CHECK(both < 80);
  CHECK_FALSE(is_probed(1, 1, 0));
}

TEST_CASE("probe: three findings in a row make the one that was served last go", "[probe]") {
  ProbeJudge judge;
  int64_t now_ns = kT;
  const std::vector<ProbeSuspect> suspects{{11, 5}, {12, 9}};
  CHECK(judge.note(ProbeOutcome::kFound, suspects, now_ns).victim == ProbeJudge::kNobody);
  CHECK(judge.note(ProbeOutcome::kUnknown, suspects, now_ns).victim == ProbeJudge::kNobody);
  CHECK(judge.note(ProbeOutcome::kFound, suspects, now_ns).victim == ProbeJudge::kNobody);
  const auto decision = judge.note(ProbeOutcome::kFound, suspects, now_ns);
  CHECK(decision.victim == 1);
  CHECK_FALSE(decision.guilty);
}

TEST_CASE("probe: a clean one between findings disproves them", "[probe]") {
  ProbeJudge judge;
  int64_t now_ns = kT;
  const std::vector<ProbeSuspect> suspects{{11, 5}};
  for (int i = 0; i < 3; ++i) {
    CHECK(judge.note(ProbeOutcome::kFound, suspects, now_ns).victim == ProbeJudge::kNobody);
    CHECK(judge.note(ProbeOutcome::kFound, suspects, now_ns).victim == ProbeJudge::kNobody);
    CHECK(judge.note(ProbeOutcome::kClean, suspects, now_ns).victim == ProbeJudge::kNobody);
    CHECK_FALSE(judge.suspicious());
  }
}

TEST_CASE("probe: guilty is whose going made the GPU clean, when it comes to that again", "[probe]") {
  ProbeJudge judge;
  int64_t now_ns = kT;
  std::vector<ProbeSuspect> suspects{{11, 5}, {12, 9}};
  const auto row = [&] {
    ProbeJudge::Decision decision;
    while (decision.victim == ProbeJudge::kNobody) decision = judge.note(ProbeOutcome::kFound, suspects, now_ns);
    return decision;
  };
  CHECK(row().victim == 1);  // 12 goes, an innocent one
  suspects.pop_back();
  now_ns += ProbeJudge::kGoneNs - 1;  // what it has left may be there still
  for (int i = 0; i < 10; ++i) CHECK(judge.note(ProbeOutcome::kFound, {}, now_ns).victim == ProbeJudge::kNobody);
  CHECK(judge.needed() == 3);
  now_ns += 1;
  const auto second = judge.note(ProbeOutcome::kFound, suspects, now_ns);  // it was not it: the row goes on
  CHECK(second.victim == 0);
  CHECK_FALSE(second.guilty);
  judge.note(ProbeOutcome::kFound, {}, now_ns);
  judge.note(ProbeOutcome::kClean, {}, now_ns);
  suspects = {{12, 20}, {11, 21}};
  const auto third = row();
  CHECK(third.victim == 1);
  CHECK(third.guilty);
  now_ns += ProbeJudge::kGoneNs;
  judge.note(ProbeOutcome::kClean, {}, now_ns);
  suspects = {{12, 30}};
  CHECK_FALSE(row().guilty);
}

TEST_CASE("probe: a training whose bubbles are not empty accuses nobody", "[probe]") {
  ProbeJudge judge;
  int64_t now_ns = kT;
  for (int i = 0; i < 100; ++i) judge.note(ProbeOutcome::kFound, {}, now_ns);
  CHECK(judge.needed() == 0);
  const std::vector<ProbeSuspect> suspects{{11, 5}};
  for (int i = 0; i < 100; ++i) CHECK(judge.note(ProbeOutcome::kFound, suspects, now_ns).victim == ProbeJudge::kNobody);
  judge.training_changed();
  CHECK(judge.needed() == 3);
}

TEST_CASE("probe: the more findings clean probes disprove, the more in a row are needed", "[probe]") {
  ProbeJudge judge;
  int64_t now_ns = kT;
  const std::vector<ProbeSuspect> suspects{{11, 5}};
  for (int i = 0; i < 400; ++i) {
    if (i % 10 == 0) judge.note(ProbeOutcome::kFound, suspects, now_ns);
    judge.note(ProbeOutcome::kClean, suspects, now_ns);
  }
  CHECK(judge.needed() == 6);
}
