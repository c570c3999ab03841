#include "freeride/policy/verdict.hpp"

#include <catch2/catch.hpp>

using namespace freeride::policy;

TEST_CASE("a stop that nobody ordered is a failure", "[verdict]") {
  freeride::policy::Verdict said;
  said.kind = freeride::policy::VerdictKind::kStopped;
  said.cause = freeride::policy::Cause::kOrder;
  said.message = "stopped in good order";
  freeride::policy::doubt_stop(said);
  CHECK(said.kind == freeride::policy::VerdictKind::kFailed);
  CHECK(said.cause == freeride::policy::Cause::kExit);
  CHECK(said.message.find("nobody had ordered: stopped in good order") != std::string::npos);
}

TEST_CASE("the first cause of an end wins, and later ones are its evidence", "[verdict]") {
  Verdict verdict;
  note_symptom(verdict, {});
  CHECK_FALSE(verdict.ended());

  Verdict failed;
  failed.kind = VerdictKind::kFailed;
  failed.cause = Cause::kTransition;
  failed.message = "RunNextStep returned a wrong value";
  note_symptom(verdict, failed);
  Verdict overran;
  overran.kind = VerdictKind::kOverran;
  overran.cause = Cause::kNoPause;
  overran.message = "had not paused 500 ms after the end of lease 7";
  overran.limit = "hang 500 ms";
  Verdict crashed;
  crashed.kind = VerdictKind::kCrashed;
  crashed.cause = Cause::kSignal;
  crashed.signal = 9;
  note_symptom(verdict, overran);
  note_symptom(verdict, overran);
  note_symptom(verdict, crashed);

  CHECK(verdict.kind == VerdictKind::kFailed);
  CHECK(verdict.cause == Cause::kTransition);
  CHECK(verdict.message == failed.message);
  CHECK(verdict.limit == "hang 500 ms");
  CHECK(verdict.signal == 0);  // what killed it afterwards is no crash
  CHECK(verdict.evidence == std::vector<std::string>{"overran: " + overran.message, "crashed"});
}

TEST_CASE("a cause that is found out after the end comes before all that was seen of it", "[verdict]") {
  Verdict seen;
  seen.kind = VerdictKind::kCrashed;
  seen.cause = Cause::kSignal;
  seen.message = "killed by signal 9";
  seen.transition = "RunNextStep";
  seen.signal = 9;
  seen.evidence = {"overran: late"};
  note_cause(seen, {VerdictKind::kOutOfMemory, Cause::kMemoryLimit, "killed at its memory limit"});
  CHECK(seen.kind == VerdictKind::kOutOfMemory);
  CHECK(seen.cause == Cause::kMemoryLimit);
  CHECK(seen.transition == "RunNextStep");
  CHECK(seen.signal == 9);
  CHECK(seen.evidence == std::vector<std::string>{"crashed: killed by signal 9", "overran: late"});
}

TEST_CASE("what was killed while it ended was stopped, and its message keeps what for", "[verdict]") {
  Verdict verdict{VerdictKind::kOverran, Cause::kLeaseEnd, "executed 123 ms past the end of lease 7"};
  verdict.limit = "grace 100 ms";
  excuse_end(verdict);
  CHECK(text_of(verdict) == "stopped: by force: executed 123 ms past the end of lease 7 (limit: grace 100 ms)");
  CHECK_FALSE(is_plugins_fault(verdict.kind));
}

TEST_CASE("evidence is bounded", "[verdict]") {
  Verdict verdict;
  for (int i = 0; i < 100; ++i) {
    Verdict next;
    next.kind = VerdictKind::kLost;
    next.message = "sign " + std::to_string(i);
    note_symptom(verdict, next);
  }
  CHECK(verdict.evidence.size() == Verdict::kMostEvidence);
}

TEST_CASE("every kind and cause has one name, and the name leads back", "[verdict]") {
  int kinds = 0, causes = 0;
  for (int i = 0; i < 100; ++i) {
    if (const auto kind = static_cast<VerdictKind>(i); *kind_name(kind) != '\0') {
      ++kinds;
      CHECK(kind_of(kind_name(kind)) == kind);
    }
    if (const auto cause = static_cast<Cause>(i); *cause_name(cause) != '\0') {
      ++causes;
      CHECK(cause_of(cause_name(cause)) == cause);
    }
  }
  CHECK(kinds == static_cast<int>(VerdictKind::kLost));
  CHECK(causes == static_cast<int>(Cause::kSuperseded));
  CHECK_FALSE(kind_of("melted"));
}
