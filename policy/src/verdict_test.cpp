#include "freeride/policy/verdict.hpp"

#include <catch2/catch.hpp>

#include "freeride/policy/why.hpp"

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

TEST_CASE("every kind, cause and reason has one name, and the name leads back", "[verdict][why]") {
  int kinds = 0, causes = 0, whys = 0;
  for (int i = 0; i < 100; ++i) {
    if (const auto kind = static_cast<VerdictKind>(i); *kind_name(kind) != '\0') {
      ++kinds;
      CHECK(kind_of(kind_name(kind)) == kind);
    }
    if (const auto cause = static_cast<Cause>(i); *cause_name(cause) != '\0') {
      ++causes;
      CHECK(cause_of(cause_name(cause)) == cause);
    }
    if (const auto why = static_cast<Why>(i); *why_name(why) != '\0') {
      ++whys;
      CHECK(why_of(why_name(why)) == why);
      CHECK_FALSE(render_why(why, {}).empty());
    }
  }
  CHECK(kinds == static_cast<int>(VerdictKind::kLost));
  CHECK(causes == static_cast<int>(Cause::kSuperseded));
  CHECK(whys == static_cast<int>(Why::kWorkTooLong));
  CHECK_FALSE(kind_of("melted"));
}

TEST_CASE("a task whose steps do not fit is told both lengths", "[why]") {
  CHECK_FALSE(steps_do_not_fit(10, 10));
  CHECK_FALSE(steps_do_not_fit(100, 30));
  CHECK(steps_do_not_fit(30, 25));
  WhyDetail detail;
  detail.step_ns = 15'000'000;
  detail.bubble_ns = 9'040'000;
  detail.leases = 30;
  detail.skipped = 25;
  CHECK(render_why(Why::kStepTooLong, detail) ==
        "its next step, 15 ms, does not fit the bubbles, the longest of which is 9 ms (25 of 30 leases unused); give "
        "it shorter steps, or yield points");
}

TEST_CASE("a program whose GPU work is longer than its leases is told its kernel and both lengths", "[why]") {
  WhyDetail detail;
  detail.what = "gemm";
  detail.step_ns = 80'000'000;
  detail.bubble_ns = 50'000'000;
  CHECK(render_why(Why::kWorkTooLong, detail) ==
        "its GPU work gemm, 80 ms, is longer than its leases, the longest of which was 50 ms; it waits for a longer "
        "one, and is tried at the begin of some");
}

TEST_CASE("what is waited for and why it was queued again are in the sentence", "[why]") {
  WhyDetail detail;
  CHECK(render_why(Why::kNoTrainer, detail) == "waiting for a trainer");
  detail.what = "w";
  CHECK(render_why(Why::kWorkerSilent, detail) == "waiting for worker w to report");
  CHECK(render_why(Why::kInactive, detail) ==
        "the training hook of w is off, so its bubbles cannot be used; see the trainer's log");
  detail.since = "worker w was lost";
  CHECK(render_why(Why::kQueued, detail) == "worker w was lost");
  CHECK(render_why(Why::kProfileWait, detail) == "worker w was lost; waiting to be profiled: w");
}
