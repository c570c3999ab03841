// An exhaustive search over what hooked ranks can do, with the calls of real pipeline schedules.
//
// A rank is a host that works through its calls, and a stream that executes what the host has put into it, in order.
// For each batch the host takes its steps from the hook's own plan (policy/batch_plan), with what it can see at that
// moment. The stream writes counters, waits for counters, starts batches and waits for them. Batches are NCCL's: one
// queue a rank, in order, and a message passes when both of its batches are at their queue's head. That is stricter
// than what libraries do, so what passes here passes there. A batch that is posted early and held apart passes nothing
// before its first message's counter is there, and neither does what is behind it in its queue.
//
// Counters show what the hook's do (policy/count_ring), and are compared as a GPU compares them; a schedule may begin
// where they are near their end, to begin anew in its middle.
//
// Besides, a rank may switch its hook off, or be killed, at any moment; then its counters are released, and released
// again after a write that was still in its stream has overwritten that.
//
// Between hosts no counter is seen. A rank's stream sends a hint where it would write one, and may be held before a
// batch (policy/remote_wait), while its host goes on. The helper thread lets it go at the hint, at the hold's ceiling,
// or when the hook goes off. A ceiling may be reached at any moment, so it stands for hints that are early, late,
// doubled or forged as well: all that a hint can do is to end a hold. Without ceilings a hint alone does: then a
// deadlock is where ranks would wait for each other's ceilings. A stream that waits for another's event behind a hold
// is no stream of its own here: it goes on where the event would have let it (hooks/src/followers.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "freeride/policy/batch_plan.hpp"
#include "freeride/policy/count_ring.hpp"
#include "freeride/policy/remote_wait.hpp"

namespace freeride::hooks::model {

struct Call {
  bool waits = false;  // for batch `batch`; else posts it
  uint32_t batch = 0;
  std::vector<uint32_t> sends, receives;  // ranks
};

struct Schedule {
  std::string name;
  std::vector<std::vector<Call>> ranks;
};

/// Reads a file of lines "schedule NAME", each followed by a line of calls a rank, as hooks/tests/frameworks/calls.py
/// writes them. Throws std::runtime_error that names the line.
std::vector<Schedule> read_schedules(const std::string& path);
/// The same from text.
std::vector<Schedule> parse_schedules(const std::string& text);

using Plan = std::function<policy::BatchPlan(const policy::Batch&)>;

struct Options {
  Plan plan = policy::plan_batch;
  uint32_t lead = 2;                // calls that a host may be ahead of its stream
  uint32_t switch_offs = 0;         // ranks that may switch their hook off
  uint32_t kills = 0;               // ranks that may be killed
  bool apart_for_all = false;       // a batch is held apart for its last message, not its first: a rule broken
  bool one_queue = true;            // a rank's batches pass in order; else those of each pair of ranks do
  bool release_again = true;        // are counters released again after a late write?
  bool eager = false;               // streams run as far as they can before anything else happens: far fewer
                                    // states; and one order of events where all end alike
  std::vector<uint32_t> host_of{};  // of each rank; empty: all are on one
  std::function<bool(const policy::RemoteBatch&)> holds_elsewhere = policy::may_hold_remotely;
  bool ceilings = true;    // holds for another host end at some time by themselves
  bool hints = true;       // hints come at some time
  bool hint_first = true;  // a batch's hints are put into its stream before it is held
  uint64_t most_states = 5'000'000;
  policy::CountRing ring{};
  uint64_t counted = 0;  // messages of each pair of ranks before the schedule's
};

struct Outcome {
  uint64_t states = 0;
  bool complete = false;  // every state was seen
  std::string fault;      // empty: none; else what is stuck where
};

/// Every order of everything. A fault is a state in which nothing can happen any more and some rank is not done; if a
/// rank was killed, only one that is held for the killed rank counts. One that is held for a living rank, which itself
/// waits for the dead one, is no fault: the hook ends a hold that lasts too long, and then it waits as without us.
Outcome explore(const Schedule& schedule, const Options& options);

}  // namespace freeride::hooks::model
