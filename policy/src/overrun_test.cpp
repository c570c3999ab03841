#include "freeride/policy/overrun.hpp"

#include <catch2/catch.hpp>

using freeride::policy::Cause;
using freeride::policy::judge_overrun;
using freeride::policy::OverrunAction;
using freeride::policy::OverrunSnapshot;

namespace {

constexpr int64_t kMs = 1'000'000;

// A lease that ended at 1000 ms with the CPU clock at 50 ms; grace 100 ms, hang 5 s.
OverrunSnapshot ended(int64_t wall_past_ms, int64_t cpu_past_ms, bool paused = false) {
  OverrunSnapshot s;
  s.lease_id = 7;
  s.claims_paused = paused;
  s.ended_ns = 1000 * kMs;
  s.now_ns = s.ended_ns + wall_past_ms * kMs;
  s.cpu_at_end_ns = 50 * kMs;
  s.cpu_now_ns = s.cpu_at_end_ns + cpu_past_ms * kMs;
  s.grace_ns = 100 * kMs;
  s.hang_ns = 5000 * kMs;
  return s;
}

}  // namespace

TEST_CASE("overrun: a task that paused in time is fine") {
  const auto decision = judge_overrun(ended(10, 3, true));
  CHECK(decision.action == OverrunAction::kFine);
  CHECK(decision.executed_ns == 3 * kMs);
}

TEST_CASE("overrun: exactly the grace is forgiven, a nanosecond more is not") {
  auto s = ended(200, 100);
  CHECK(judge_overrun(s).action == OverrunAction::kWait);
  s.cpu_now_ns += 1;
  const auto decision = judge_overrun(s);
  CHECK(decision.action == OverrunAction::kKill);
  CHECK(decision.cause == Cause::kLeaseEnd);
  CHECK(decision.limit == "grace 100 ms");
  CHECK(decision.reason.find("lease 7") != std::string::npos);
}

TEST_CASE("overrun: on a CPU a starved task is not killed for wall time short of the hang limit") {
  CHECK(judge_overrun(ended(4900, 1)).action == OverrunAction::kWait);
  const auto hung = judge_overrun(ended(5001, 1));
  CHECK(hung.action == OverrunAction::kKill);
  CHECK(hung.cause == Cause::kNoPause);
  CHECK(hung.limit == "hang 5000 ms");
}

TEST_CASE("overrun: what a task has waited for a processor is no hang, nor is waiting for one now") {
  auto s = ended(60'000, 1);
  s.wants_cpu = true;
  CHECK(judge_overrun(s).action == OverrunAction::kWait);
  s.wants_cpu = false;
  CHECK(judge_overrun(s).action == OverrunAction::kKill);
  s.starved_ns = 55'000 * kMs;
  CHECK(judge_overrun(s).action == OverrunAction::kWait);
  s.starved_ns -= kMs;
  CHECK(judge_overrun(s).action == OverrunAction::kKill);
  s.starved_ns = -kMs;  // of another process's clock, say
  CHECK(judge_overrun(s).action == OverrunAction::kKill);
  // On a GPU others' use of the processor is no excuse: the GPU is held meanwhile.
  s.by_cpu_clock = false;
  s.grace_ns = 120'000 * kMs;
  s.starved_ns = 60'000 * kMs;
  s.wants_cpu = true;
  CHECK(judge_overrun(s).action == OverrunAction::kKill);
}

TEST_CASE("overrun: a claimed pause hides neither CPU time nor becomes a hang") {
  CHECK(judge_overrun(ended(3000, 101, true)).action == OverrunAction::kKill);
  CHECK(judge_overrun(ended(3000, 101, true)).cause == Cause::kUnleased);
  CHECK(judge_overrun(ended(60'000, 1, true)).action == OverrunAction::kFine);
}

TEST_CASE("overrun: on a GPU execution is wall time until the pause") {
  auto s = ended(99, 0);
  s.by_cpu_clock = false;
  CHECK(judge_overrun(s).action == OverrunAction::kWait);
  s = ended(101, 0);
  s.by_cpu_clock = false;
  CHECK(judge_overrun(s).action == OverrunAction::kKill);
  s.claims_paused = true;
  s.paused_ns = s.ended_ns + 5 * kMs;
  const auto decision = judge_overrun(s);
  CHECK(decision.action == OverrunAction::kFine);
  CHECK(decision.executed_ns == 5 * kMs);
}

TEST_CASE("overrun: a pause in the future or before the end is not believed beyond the facts") {
  auto s = ended(150, 0, true);
  s.by_cpu_clock = false;
  s.paused_ns = INT64_MAX;
  CHECK(judge_overrun(s).executed_ns == 150 * kMs);
  s.paused_ns = s.ended_ns - 20 * kMs;
  CHECK(judge_overrun(s).executed_ns == 0);
}

TEST_CASE("overrun: the next look comes before any limit can be passed, and looks do not crowd") {
  for (int64_t cpu = 0; cpu <= 100; ++cpu) {
    auto s = ended(cpu, cpu);
    const auto decision = judge_overrun(s);
    REQUIRE(decision.action == OverrunAction::kWait);
    CHECK(decision.look_at_ns >= s.now_ns + 10 * kMs);
    CHECK(decision.look_at_ns <= s.ended_ns + s.grace_ns + 10 * kMs + 1);
  }
  auto many = ended(0, 0);
  many.cores = 4;
  CHECK(judge_overrun(many).look_at_ns <= many.now_ns + 25 * kMs + 1);
}

TEST_CASE("overrun: waiting and looking as told always ends in a kill of a task that never pauses") {
  for (const bool executes : {true, false}) {
    auto s = ended(0, 0);
    int looks = 0;
    for (;; ++looks) {
      REQUIRE(looks < 600);
      const auto decision = judge_overrun(s);
      if (decision.action == OverrunAction::kKill) break;
      REQUIRE(decision.look_at_ns > s.now_ns);
      if (executes) s.cpu_now_ns += decision.look_at_ns - s.now_ns;
      s.now_ns = decision.look_at_ns;
    }
    CHECK(looks < (executes ? 4 : 60));
  }
}

TEST_CASE("overrun: clocks that run backwards count as no execution") {
  auto s = ended(10, -40);
  CHECK(judge_overrun(s).executed_ns == 0);
  CHECK(judge_overrun(s).action == OverrunAction::kWait);
}

TEST_CASE("overrun: limits without end do not wrap the clock") {
  auto s = ended(10, 10);
  s.grace_ns = INT64_MAX;
  s.hang_ns = INT64_MAX;
  const auto decision = judge_overrun(s);
  CHECK(decision.action == OverrunAction::kWait);
  CHECK(decision.look_at_ns > s.now_ns);
}
