#include "freeride/policy/overrun.hpp"

#include <algorithm>

#include "freeride/base/time.hpp"

namespace freeride::policy {
namespace {

// Near its limit a starved task would otherwise be looked at ever more often.
constexpr int64_t kShortestLookNs = kNsPerMs;
constexpr int64_t kLooksPerGrace = 10;
// Limits without end must not wrap the clock.
constexpr int64_t kLongestLookNs = 86'400'000 * kNsPerMs;

int64_t executed_past_end(const OverrunSnapshot& s) {
  if (s.by_cpu_clock) return std::max<int64_t>(0, s.cpu_now_ns - s.cpu_at_end_ns);
  const int64_t until = s.claims_paused ? std::min(s.paused_ns, s.now_ns) : s.now_ns;
  return std::max<int64_t>(0, until - s.ended_ns);
}

}  // namespace

OverrunDecision judge_overrun(const OverrunSnapshot& s) {
  OverrunDecision decision;
  decision.executed_ns = executed_past_end(s);
  if (decision.executed_ns > s.grace_ns) {
    decision.action = OverrunAction::kKill;
    // A GPU shows no execution: there a claimed pause is believed, and came too late.
    decision.cause = s.claims_paused && s.by_cpu_clock ? Cause::kUnleased : Cause::kLeaseEnd;
    decision.reason = "executed " + milliseconds(decision.executed_ns) + " past the end of lease " +
                      std::to_string(s.lease_id) + (s.claims_paused ? " though it said that it had paused" : "");
    decision.limit = "grace " + milliseconds(s.grace_ns);
    return decision;
  }
  if (s.claims_paused) return decision;

  const int64_t starved_ns = s.by_cpu_clock ? std::max<int64_t>(0, s.starved_ns) : 0;
  const int64_t waited_ns = std::max<int64_t>(0, s.now_ns - s.ended_ns - starved_ns);
  const bool starves = s.by_cpu_clock && s.wants_cpu;
  if (waited_ns > s.hang_ns && !starves) {
    decision.action = OverrunAction::kKill;
    decision.cause = Cause::kNoPause;
    decision.reason =
        "had not paused " + milliseconds(waited_ns) + " after the end of lease " + std::to_string(s.lease_id);
    decision.limit = "hang " + milliseconds(s.hang_ns);
    return decision;
  }
  decision.action = OverrunAction::kWait;
  const int64_t shortest = std::max(kShortestLookNs, s.grace_ns / kLooksPerGrace);
  const int64_t rate = s.by_cpu_clock ? std::max<uint32_t>(1, s.cores) : 1;
  const int64_t until_grace = std::max((s.grace_ns - decision.executed_ns) / rate, shortest);
  // The hang limit is a fixed moment: no need for a shortest look there. Past it the task has only to be seen asleep.
  const int64_t until_hang = waited_ns > s.hang_ns ? std::max(shortest, s.hang_ns / 2) : s.hang_ns - waited_ns;
  decision.look_at_ns = s.now_ns + std::min({until_grace, until_hang, kLongestLookNs}) + 1;
  return decision;
}

}  // namespace freeride::policy
