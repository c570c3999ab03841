// When a side task that still executes past the end of its lease has to be killed.
#pragma once

#include <cstdint>
#include <string>

#include "freeride/policy/verdict.hpp"

namespace freeride::policy {

/// What is known of a task whose lease has ended (deadline passed, or revoked). All times CLOCK_MONOTONIC, ns; all CPU
/// clocks the process's own (all its threads), ns.
struct OverrunSnapshot {
  uint64_t lease_id = 0;  ///< the lease that ended: for the reason's text
  bool claims_paused =
      false;  ///< the answer page says that nothing executes (it may lie: the CPU clock is looked at anyway)
  bool by_cpu_clock = true;  ///< true: execution is CPU time (CPU devices); false: execution is wall time (GPUs)
  int64_t now_ns = 0;
  int64_t cpu_now_ns = 0;     ///< ignored unless by_cpu_clock
  int64_t ended_ns = 0;       ///< when the lease ended: its deadline or, if earlier, its revocation
  int64_t cpu_at_end_ns = 0;  ///< CPU clock then; ignored unless by_cpu_clock
  int64_t paused_ns =
      0;  ///< last paused timestamp of the answer page; only read when claims_paused and not by_cpu_clock
  int64_t grace_ns = 0;  ///< execution past the end that is forgiven
  int64_t hang_ns = 0;   ///< time past the end, without what it was starved, after which a task that has not paused is
                         ///< killed, executing or not
  int64_t starved_ns =
      0;  ///< of the time past the end, what it has waited for a processor; ignored unless by_cpu_clock
  bool wants_cpu = false;  ///< it waits for a processor at this moment, or executes; ignored unless by_cpu_clock
  uint32_t cores = 1;      ///< how many cores the task may use: its CPU clock runs at most this fast
};

enum class OverrunAction {
  kFine,  ///< paused within its limits; look again only if it executes though it says that it does not
  kWait,  ///< not paused yet, within its limits: look again at look_at_ns
  kKill,  ///< beyond a limit
};

struct OverrunDecision {
  OverrunAction action = OverrunAction::kFine;
  int64_t look_at_ns = 0;      ///< kWait only; always later than now
  int64_t executed_ns = 0;     ///< execution past the end so far: the overrun
  Cause cause = Cause::kNone;  ///< kKill only: kLeaseEnd, kNoPause, or kUnleased where it claims to have paused
  std::string reason;          ///< kKill only: one sentence
  std::string limit;           ///< kKill only: the limit with its value and unit, e.g. "grace 100 ms"
};

/// The kill rule: execution past the end > grace_ns, or time past the end > hang_ns while not paused. On a CPU,
/// execution is the process's CPU time since the lease's end, whatever the task claims. So a claimed pause does not
/// hide a thread that continues. There the hang limit does not count the time for which the task has waited for a
/// processor, and nobody is killed who waits for one now. A task that training starves has had no chance to pause; a
/// task that hangs sleeps. Pure; allocates only for kKill.
OverrunDecision judge_overrun(const OverrunSnapshot& snapshot);

}  // namespace freeride::policy
