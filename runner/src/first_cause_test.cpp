// Last words, and which of what was seen at an end is the verdict.
#include "first_cause.hpp"

#include <catch2/catch.hpp>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "freeride/pages.h"
#include "last_words.hpp"
#include "report.hpp"

using namespace freeride;
using namespace freeride::runner;
using policy::Cause;
using policy::Verdict;
using policy::VerdictKind;

namespace {

Outcome words(VerdictKind kind, Cause cause, const std::string& message, uint32_t transition = FREERIDE_IN_NONE) {
  return decode(last_words(kind, cause, transition, message.c_str())).value();
}

Verdict kill(Cause cause, VerdictKind kind = VerdictKind::kOverran) {
  Verdict verdict;
  verdict.kind = kind;
  verdict.cause = cause;
  verdict.transition = "RunNextStep";
  verdict.message = "a limit was passed";
  verdict.limit = "hang 200 ms";
  return verdict;
}

const Outcome kFailedStep = words(VerdictKind::kFailed, Cause::kTransition, "told to fail", FREERIDE_IN_STEP);
const Outcome kDone = words(VerdictKind::kFinished, Cause::kDone, "its work is done");

}  // namespace

TEST_CASE("last words: only well-formed ones of a known kind and cause count") {
  LastWords said = last_words(VerdictKind::kFinished, Cause::kSteps, FREERIDE_IN_NONE, std::string(5000, 'x').c_str());
  const auto outcome = decode(said);
  REQUIRE(outcome);
  CHECK(outcome->verdict.kind == VerdictKind::kFinished);
  CHECK(outcome->verdict.cause == Cause::kSteps);
  CHECK(outcome->verdict.message.size() == said.message.size() - 1);
  said.message.fill('x');  // not terminated
  CHECK_FALSE(decode(said));
  said.message[0] = '\0';
  said.kind = static_cast<uint32_t>(VerdictKind::kOverran);  // not for the plugin's process to say
  CHECK_FALSE(decode(said));
  said.kind = static_cast<uint32_t>(VerdictKind::kFinished);
  said.cause = static_cast<uint32_t>(Cause::kTrainingMemory);  // nor this
  CHECK_FALSE(decode(said));
  said.cause = 4711;
  CHECK_FALSE(decode(said));
  said.cause = static_cast<uint32_t>(Cause::kDone);
  CHECK(decode(said));
  said.magic = 0;
  CHECK_FALSE(decode(said));
}

TEST_CASE("last words: a transition that does not exist is none") {
  CHECK(decode(last_words(VerdictKind::kFailed, Cause::kTransition, 4711, ""))->verdict.transition.empty());
}

TEST_CASE("verdict of a process that ended by itself") {
  auto verdict = FirstCause().ended(SIGSEGV, FREERIDE_IN_STEP).verdict;
  CHECK(verdict.kind == VerdictKind::kCrashed);
  CHECK(verdict.cause == Cause::kSignal);
  CHECK(verdict.signal == SIGSEGV);
  CHECK(verdict.exit_code == -1);
  CHECK(verdict.transition == "RunNextStep");
  CHECK(FirstCause().ended(SIGSYS, FREERIDE_IN_STEP).verdict.cause == Cause::kForbiddenCall);
  verdict = FirstCause().ended(0, FREERIDE_IN_NONE).verdict;
  CHECK(verdict.kind == VerdictKind::kFailed);
  CHECK(verdict.cause == Cause::kExit);
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.message == "exited with code 0 between transitions; a side task must not end its process");
  verdict = FirstCause().ended(7 << 8, 4711).verdict;  // a transition that does not exist
  CHECK(verdict.exit_code == 7);
  CHECK(verdict.message.find("code 7") != std::string::npos);
  CHECK(verdict.transition.empty());
}

TEST_CASE("first cause: a transition that has failed is the cause, a kill while its process ends is evidence") {
  for (const Cause cause : {Cause::kNoPause, Cause::kLeaseEnd, Cause::kUnleased, Cause::kSlowTransition}) {
    FirstCause first;
    first.said(kFailedStep);
    first.killed(kill(cause));
    const Verdict verdict = first.ended(SIGKILL, FREERIDE_IN_STEP).verdict;
    CHECK(verdict.kind == VerdictKind::kFailed);
    CHECK(verdict.cause == Cause::kTransition);
    CHECK(verdict.message == "told to fail");
    CHECK(verdict.limit == "hang 200 ms");
    CHECK(verdict.evidence == std::vector<std::string>{"overran: a limit was passed"});
    CHECK(verdict.signal == 0);  // the supervisor's own
  }
}

TEST_CASE("first cause: what was executed past the lease before a transition failed is the cause") {
  FirstCause first;
  first.killed(kill(Cause::kLeaseEnd));
  first.said(kFailedStep);
  const Verdict verdict = first.ended(SIGKILL, FREERIDE_IN_STEP).verdict;
  CHECK(verdict.kind == VerdictKind::kOverran);
  CHECK(verdict.cause == Cause::kLeaseEnd);
  CHECK(verdict.evidence == std::vector<std::string>{"failed: told to fail"});
}

TEST_CASE("first cause: who says that it has finished and then executes without a lease has overran it") {
  for (const Cause cause : {Cause::kNoPause, Cause::kLeaseEnd, Cause::kUnleased}) {
    FirstCause first;
    first.said(kDone);
    first.killed(kill(cause));
    const Verdict verdict = first.ended(SIGKILL, FREERIDE_IN_STEP).verdict;
    CHECK(verdict.kind == VerdictKind::kOverran);
    CHECK(verdict.cause == cause);
    CHECK(verdict.evidence == std::vector<std::string>{"finished: its work is done"});
  }
}

TEST_CASE("first cause: a task that has finished stays so when its destroy() is too slow or crashes") {
  FirstCause slow;
  slow.said(kDone);
  slow.killed(kill(Cause::kSlowTransition));
  Verdict verdict = slow.ended(SIGKILL, FREERIDE_IN_STOP).verdict;
  CHECK(verdict.kind == VerdictKind::kFinished);
  CHECK(verdict.evidence == std::vector<std::string>{"overran: a limit was passed"});
  FirstCause crashed;
  crashed.said(kDone);
  verdict = crashed.ended(SIGSEGV, FREERIDE_IN_STOP).verdict;
  CHECK(verdict.kind == VerdictKind::kFinished);
  CHECK(verdict.signal == SIGSEGV);
  CHECK(verdict.evidence == std::vector<std::string>{"crashed: killed by signal 11 (SIGSEGV) in StopSideTask"});
}

TEST_CASE("first cause: only the first last words count, and the runner's own exit after them is no symptom") {
  FirstCause first;
  first.said(kFailedStep);
  first.said(kDone);
  const Verdict verdict = first.ended(1 << 8, FREERIDE_IN_STEP).verdict;
  CHECK(verdict.kind == VerdictKind::kFailed);
  CHECK(verdict.evidence.empty());
}

TEST_CASE("report: an outcome comes through whole, whatever bytes the plugin gave") {
  Outcome outcome = kFailedStep;
  outcome.verdict.message = "a\"b\n\xff";
  outcome.verdict.exit_code = 3;
  outcome.verdict.evidence = {"overran: a limit was passed", "second"};
  outcome.threads_awake = 2;
  outcome.step_p90_ns = 7;
  const std::string text = to_json(outcome).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const Outcome read = outcome_of(nlohmann::json::parse(text));
  CHECK(read.verdict.kind == VerdictKind::kFailed);
  CHECK(read.verdict.cause == Cause::kTransition);
  CHECK(read.verdict.message == "a\"b\n\ufffd");
  CHECK(read.verdict.transition == "RunNextStep");
  CHECK(read.verdict.exit_code == 3);
  CHECK(read.verdict.evidence == outcome.verdict.evidence);
  CHECK(read.threads_awake == 2);
  CHECK(read.step_p90_ns == 7);
  // The keys of before are what they were.
  const auto json = to_json(outcome);
  CHECK(json["event"] == "verdict");
  CHECK(json["kind"] == "failed");
  CHECK(json["transition"] == "RunNextStep");
  CHECK(json["cause"] == "transition");
}

TEST_CASE("report: the longest last words fit into a datagram") {
  Outcome outcome = words(VerdictKind::kFailed, Cause::kTransition, std::string(5000, '\x01'), FREERIDE_IN_STEP);
  outcome.verdict.evidence.assign(Verdict::kMostEvidence, std::string(200, 'x'));
  CHECK(to_json(outcome).dump().size() <= kMostReportBytes);
}
