// TaskSource: what main and acting thread share of one side task.
#pragma once

#include <atomic>
#include <cstdint>

#include "freeride/pages/mapping.hpp"
#include "freeride/policy/verdict.hpp"
#include "freeride/policy/why.hpp"

namespace freeride::worker {

/// A task's two pages and what the main thread wants to know of it. Shared by both threads; the pages' own rules say
/// who writes, the atomics are written by the acting thread only.
struct TaskSource {
  uint64_t id = 0;
  uint64_t content = 0;  ///< names its plugin's content
  pages::Mapped<freeride_lease_page> lease;
  pages::Mapped<const freeride_answer_page> answer;
  bool profile = false;                ///< where there is no training, wants a profile lease instead of an init lease
  bool program = false;                ///< of processes that only its supervisor knows, see SupervisedProcesses
  std::atomic<int> supervisor_pid{0};  ///< of a program, in this process's namespace; written by the main thread
  bool when_idle = false;
  int32_t priority = 0;
  int64_t predicted_ns = 0;  ///< of a step, from its profile; 0: not known
  std::atomic<int64_t> harvested_ns{0}, overrun_ns{0};
  std::atomic<uint64_t> leases{0};
  std::atomic<uint64_t> save_lease{0};               ///< id of the latest save lease
  std::atomic<bool> leased{false};                   ///< has had a lease, if only to initialise
  std::atomic<bool> in_bubbles{false};               ///< has had a lease of a bubble
  std::atomic<bool> in_transition{false};            ///< it starts, saves or ends just now, in no lease for steps
  std::atomic<policy::Why> why{policy::Why::kNone};  ///< why an initialised task that is to run makes no step
  std::atomic<int64_t> longest_lease_ns{0};          ///< of the last minute, for steps
  policy::Verdict killed_verdict;                    ///< written once, before `killed`
  bool failed_before_kill = false;                   ///< as that: it did not execute, and a transition of it had failed
  std::atomic<bool> killed{false};  ///< the acting thread kills it, or has; set before the first signal is sent
};

}  // namespace freeride::worker
