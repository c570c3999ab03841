#include "freeride/policy/probe.hpp"

#include <catch2/catch.hpp>
#include <random>
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

namespace {

constexpr auto kFound = ProbeOutcome::kFound, kClean = ProbeOutcome::kClean;

/// Probes of a training that makes findings of its own by chance, and of side tasks.
struct Probes {
  ProbeJudge judge;
  int64_t now_ns = kT;
  std::vector<ProbeSuspect> suspects;

  ProbeJudge::Decision note(ProbeOutcome outcome) {
    now_ns += 10 * kMs;
    return judge.note(outcome, suspects, now_ns);
  }
  /// Findings until somebody has to go, `most` of them.
  ProbeJudge::Decision row(uint32_t most = 20) {
    ProbeJudge::Decision decision;
    for (uint32_t i = 0; i < most && decision.victim == ProbeJudge::kNobody; ++i) decision = note(kFound);
    return decision;
  }
  /// Who went is gone, and this is what the controls find.
  void control(uint32_t findings = 0, std::vector<ProbeSuspect> left = {}) {
    suspects = std::move(left);
    now_ns += ProbeJudge::kGoneNs;
    for (uint32_t i = 0; i < ProbeJudge::kControls; ++i) note(i < findings ? kFound : kClean);
  }
};

}  // namespace

TEST_CASE("probe: three findings in a row make the one that was served last go", "[probe]") {
  Probes probes;
  probes.suspects = {{11, 5}, {12, 9}};
  CHECK(probes.row(1).victim == ProbeJudge::kNobody);
  probes.note(ProbeOutcome::kUnknown);
  CHECK(probes.row(1).victim == ProbeJudge::kNobody);
  const auto decision = probes.row(1);
  CHECK(decision.victim == 1);
  CHECK(decision.row == 3);
  CHECK_FALSE(decision.guilty);
}

TEST_CASE("probe: a clean one between findings ends the row, and says nothing of training", "[probe]") {
  Probes probes;
  probes.suspects = {{11, 5}};
  // What a side task shows or hides beside it must not raise what it takes: it would be free after some rows.
  for (int i = 0; i < 300; ++i) {
    CHECK(probes.row(2).victim == ProbeJudge::kNobody);
    CHECK(probes.judge.wants_all(false));
    CHECK(probes.note(kClean).victim == ProbeJudge::kNobody);
    CHECK_FALSE(probes.judge.wants_all(false));
  }
  CHECK(probes.judge.row_to_go() == 3);
  CHECK(probes.row(3).victim == 0);
}

TEST_CASE("probe: after an eviction nobody gets a lease until controls are made", "[probe]") {
  Probes probes;
  CHECK_FALSE(probes.judge.controlling(probes.now_ns));
  probes.suspects = {{11, 5}};
  REQUIRE(probes.row().victim == 0);
  CHECK(probes.judge.controlling(probes.now_ns));
  CHECK(probes.judge.wants_all(true));
  probes.control();
  CHECK_FALSE(probes.judge.controlling(probes.now_ns));
  CHECK(probes.judge.row_of_proof() == 5);
  // Where they do not come there is an end, too.
  probes.suspects = {{12, 6}};
  REQUIRE(probes.row().victim == 0);
  CHECK(probes.judge.controlling(probes.now_ns + ProbeJudge::kControlNs - 1));
  CHECK_FALSE(probes.judge.controlling(probes.now_ns + ProbeJudge::kControlNs));
}

TEST_CASE("probe: what the evicted one has left for two seconds tells nothing", "[probe]") {
  Probes probes;
  probes.suspects = {{11, 5}};
  REQUIRE(probes.row().victim == 0);
  probes.suspects = {};
  for (int i = 0; i < 100; ++i) probes.note(kFound);
  probes.control();
  CHECK(probes.judge.row_of_proof() == 5);
}

TEST_CASE("probe: guilty is who comes to it again, after the GPU was quiet without it", "[probe]") {
  Probes probes;
  probes.suspects = {{11, 5}};
  REQUIRE_FALSE(probes.row().guilty);
  probes.control();
  probes.suspects = {{11, 7}, {12, 8}};  // marked: it goes rather than who was served last
  const auto again = probes.row();
  CHECK(again.victim == 0);
  CHECK(again.guilty);
  CHECK(again.row == 5);
  probes.control();
  probes.suspects = {{12, 30}};
  CHECK_FALSE(probes.row().guilty);
}

TEST_CASE("probe: who went in vain is not marked; who goes after it, and makes the GPU quiet, is", "[probe]") {
  Probes probes;
  probes.suspects = {{11, 5}, {12, 9}};
  REQUIRE(probes.row().victim == 1);
  probes.suspects = {{11, 5}};  // stopped, and its work goes on
  probes.now_ns += ProbeJudge::kGoneNs;
  const auto second = probes.row();
  CHECK(second.victim == 0);
  CHECK_FALSE(second.guilty);
  probes.control();
  CHECK(probes.judge.row_of_proof() == 5);  // its findings are not training's
  probes.suspects = {{12, 20}};
  CHECK_FALSE(probes.row().guilty);
  probes.control();
  probes.suspects = {{11, 40}, {12, 41}};
  const auto guilty = probes.row();
  CHECK(guilty.guilty);
}

TEST_CASE("probe: a training whose bubbles are not empty accuses nobody", "[probe]") {
  Probes probes;
  CHECK(probes.judge.row_of_proof() == 0);  // nothing is known of it
  for (int i = 0; i < 100; ++i) probes.note(kFound);
  CHECK(probes.judge.row_to_go() == 0);
  CHECK(probes.judge.row_of_proof() == 0);
  probes.suspects = {{11, 5}};
  CHECK(probes.row(100).victim == ProbeJudge::kNobody);
  probes.judge.training_changed();
  CHECK(probes.judge.row_to_go() == 3);
}

TEST_CASE("probe: the more findings controls have, the longer a row has to be to prove anything", "[probe]") {
  for (const auto& [findings, proof] : std::vector<std::pair<uint32_t, uint32_t>>{{0, 5}, {1, 6}, {3, 8}, {8, 0}}) {
    Probes probes;
    probes.suspects = {{11, 5}};
    REQUIRE(probes.row().victim == 0);
    probes.control(findings);
    CHECK(probes.judge.row_of_proof() == proof);
    probes.suspects = {{11, 7}};
    CHECK(probes.row().guilty == (proof != 0));
  }
}

TEST_CASE("probe: before anybody is there every bubble is probed until enough is known of training", "[probe]") {
  Probes probes;
  for (uint32_t i = 0; i < ProbeJudge::kControls; ++i) {
    CHECK(probes.judge.wants_all(true));
    CHECK_FALSE(probes.judge.wants_all(false));
    probes.note(kClean);
  }
  CHECK_FALSE(probes.judge.wants_all(true));
}

TEST_CASE("probe: training's own work by chance kills nobody in a hundred thousand probes", "[probe]") {
  std::mt19937_64 random(7);
  for (const double share : {0.02, 0.1, 0.5}) {
    Probes probes;
    std::bernoulli_distribution own(share);
    int gone = 0;
    for (int i = 0; i < 100'000; ++i) {
      const bool controls = probes.judge.controlling(probes.now_ns);
      probes.suspects = controls ? std::vector<ProbeSuspect>{} : std::vector<ProbeSuspect>{{11, 5}};
      const auto decision = probes.note(own(random) ? kFound : kClean);
      CHECK_FALSE(decision.guilty);
      gone += decision.victim == 0 ? 1 : 0;
    }
    CHECK(gone <= 8);
  }
}
