// What is judged of a program, without processes.
#include <catch2/catch.hpp>
#include <csignal>

#include "program.hpp"
#include "program_process.hpp"

using namespace freeride;
using namespace freeride::runner;
using policy::Cause;
using policy::VerdictKind;

namespace {

constexpr int exited(int code) {
  return code << 8;
}

}  // namespace

TEST_CASE("a program's end: exit code, order, signal", "[program]") {
  const auto good = program_outcome(exited(0), false);
  REQUIRE(good);
  CHECK(good->verdict.kind == VerdictKind::kFinished);
  CHECK(good->verdict.exit_code == 0);

  const auto bad = program_outcome(exited(3), false);
  REQUIRE(bad);
  CHECK(bad->verdict.kind == VerdictKind::kFailed);
  CHECK(bad->verdict.cause == Cause::kExit);
  CHECK(bad->verdict.exit_code == 3);

  CHECK_FALSE(program_outcome(SIGSEGV, false));  // FirstCause names it

  for (const int status : {exited(0), exited(3), SIGTERM + 0, SIGKILL + 0}) {
    const auto stopped = program_outcome(status, true);
    REQUIRE(stopped);
    CHECK(stopped->verdict.kind == VerdictKind::kStopped);
    CHECK(stopped->verdict.cause == Cause::kOrder);
  }
}

TEST_CASE("what a program executed between its lease's end and the notice is bounded by both clocks", "[program]") {
  LateNotice notice;
  notice.executed_ns = 50;
  notice.late_ns = 10;
  CHECK(executed_late_ns(notice) == 10);
  notice.cores = 4;
  CHECK(executed_late_ns(notice) == 40);
  notice.executed_ns = 5;
  CHECK(executed_late_ns(notice) == 5);
  // While its supervisor had no core, it had none.
  notice.executed_ns = 50;
  notice.starved_ns = 8;
  CHECK(executed_late_ns(notice) == 8);
  notice.starved_ns = 100;
  CHECK(executed_late_ns(notice) == 0);
  // Clocks that make no sense make nothing of it.
  CHECK(executed_late_ns({-1, 10, 0, 1}) == 0);
  CHECK(executed_late_ns({50, -10, -5, 1}) == 0);
  CHECK(executed_late_ns({INT64_MAX, INT64_MAX, 0, 64}) == INT64_MAX);
}

TEST_CASE("what is stopped, dead or asleep in the kernel executes nothing", "[program]") {
  for (const char state : {'T', 't', 'Z', 'X', 'D'}) CHECK(executes_nothing(state));
  for (const char state : {'R', 'S', 'W', 'P', '?', '\0'}) CHECK_FALSE(executes_nothing(state));
}

TEST_CASE("a program is found as a shell finds it", "[program]") {
  CHECK(find_program("sh", "/nowhere:/bin") == "/bin/sh");
  CHECK(find_program("/bin/sh", "") == "/bin/sh");
  CHECK(find_program("sh", "/nowhere").empty());
  CHECK(find_program("bin", "/").empty());  // a folder
  CHECK(find_program("/etc/passwd", "").empty());
  CHECK(find_program("no-such-program", "/bin").empty());
}
