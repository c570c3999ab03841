#include "tasks/verdicts.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "loop/loop.hpp"
#include "tasks/report_reader.hpp"

using namespace freeride;
using namespace freeride::worker;

TEST_CASE("a supervisor's verdict is typed, bounded, and never none", "[verdict]") {
  const nlohmann::json whole = {
      {"event", "verdict"},          {"kind", "crashed"}, {"cause", "signal"}, {"reason", "by signal 11"},
      {"transition", "RunNextStep"}, {"signal", 11},      {"limit", "none"},   {"evidence", {"one", 2, "three"}}};
  const policy::Verdict verdict = verdict_of(whole);
  CHECK(verdict.kind == policy::VerdictKind::kCrashed);
  CHECK(verdict.cause == policy::Cause::kSignal);
  CHECK(verdict.signal == 11);
  CHECK(verdict.exit_code == -1);
  CHECK(verdict.evidence == std::vector<std::string>{"one", "three"});
  for (const char* kind : {"", "conquered"}) {
    CHECK(verdict_of({{"kind", kind}}).kind == policy::VerdictKind::kFailed);
  }
  CHECK(verdict_of({{"reason", std::string(100'000, 'x')}}).message.size() == 1024);
  CHECK(verdict_of({{"exit_code", 3}}).exit_code == 3);
}

TEST_CASE("a verdict becomes strings for the bus", "[verdict]") {
  policy::Verdict verdict{policy::VerdictKind::kOutOfMemory, policy::Cause::kMemoryLimit, "killed"};
  verdict.exit_code = 7;
  verdict.evidence = {"crashed"};
  const bus::Verdict out = to_bus(verdict, "last words");
  CHECK(out.kind == "out_of_memory");
  CHECK(out.cause == "memory_limit");
  CHECK(out.reason == "killed");
  CHECK(out.exit_code == 7);
  CHECK(out.evidence == verdict.evidence);
  CHECK(out.log_tail == "last words");
  CHECK(to_bus({}, "").kind.empty());
}

TEST_CASE("a report's datagrams: what is no JSON is left out, and its end is no error", "[verdict]") {
  auto loop = std::move(Loop::create().value());
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  std::vector<std::string> said;
  ReportReader::Calls calls;
  calls.started = [&](const Fd& process, const Fd&) { said.emplace_back(process.valid() ? "started" : "no process"); };
  calls.verdict = [&](const policy::Verdict& verdict, int64_t peak_bytes) {
    said.push_back(text_of(verdict) + " " + std::to_string(peak_bytes));
  };
  ReportReader reader(Fd(ends[0]), *loop, std::move(calls));
  REQUIRE(reader.start().ok());
  const Fd far(ends[1]);
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(R"({"event":"other"})"), std::string(R"({"event":"started"})"),
        std::string(R"({"event":"verdict","kind":"finished","reason":"done","peak_resident_bytes":5})")}) {
    REQUIRE(send(far.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  }
  reader.read();
  CHECK(said == std::vector<std::string>{"no process", "finished: done 5"});
  reader.read();
  CHECK(said.size() == 2);
}

TEST_CASE("a verdict tells a GPU fault by the cause's words or by what was seen after it") {
  policy::Verdict verdict;
  verdict.kind = policy::VerdictKind::kFailed;
  verdict.message = "RunNextStep: cudaStreamSynchronize: an illegal memory access was encountered";
  CHECK(to_bus(verdict, "").gpu_fault);
  verdict.message = "RunNextStep: the file is empty";
  CHECK_FALSE(to_bus(verdict, "").gpu_fault);
  verdict.evidence = {"failed: cudaErrorIllegalInstruction"};
  CHECK(to_bus(verdict, "").gpu_fault);
  verdict = {};
  verdict.kind = policy::VerdictKind::kOutOfMemory;
  verdict.message = "cudaErrorMemoryAllocation: out of memory";
  CHECK_FALSE(to_bus(verdict, "").gpu_fault);
  verdict.gpu_fault = true;  // seen by somebody
  CHECK(to_bus(verdict, "").gpu_fault);
}

TEST_CASE("a saved state outlives ends that a task was not meant to have, but not one in RestoreState") {
  policy::Verdict verdict;
  for (const auto kind : {policy::VerdictKind::kFinished, policy::VerdictKind::kStopped, policy::VerdictKind::kReplaced,
                          policy::VerdictKind::kRejected}) {
    verdict.kind = kind;
    CHECK_FALSE(may_continue(verdict));
  }
  for (const auto kind :
       {policy::VerdictKind::kLost, policy::VerdictKind::kEvicted, policy::VerdictKind::kCrashed,
        policy::VerdictKind::kFailed, policy::VerdictKind::kOverran, policy::VerdictKind::kOutOfMemory}) {
    verdict.kind = kind;
    CHECK(may_continue(verdict));
  }
  verdict.transition = "RestoreState";
  CHECK_FALSE(may_continue(verdict));
}
