// TaskSlot: the parts of one side task in the acting thread, and what keeps them in step.
#pragma once

#include <cstdint>
#include <memory>

#include "acting/answers.hpp"
#include "acting/harvest_meter.hpp"
#include "acting/kill_watch.hpp"
#include "acting/lease_writer.hpp"
#include "acting/processes.hpp"
#include "acting/supervised_processes.hpp"
#include "acting/task_source.hpp"
#include "acting/why_note.hpp"
#include "freeride/policy/lease.hpp"

namespace freeride::worker {

/// Belongs to the acting thread. No allocation but for a kill.
struct TaskSlot {
  TaskSlot(std::shared_ptr<TaskSource> shared, const TaskLimits& limits, Processes& processes);
  TaskSlot(const TaskSlot&) = delete;
  TaskSlot& operator=(const TaskSlot&) = delete;

  const std::shared_ptr<TaskSource> source;
  Answers answers{*source};
  SupervisedProcesses supervised;  ///< of a program
  TaskProcess process;
  LeaseWriter lease;
  KillWatch kills;
  HarvestMeter harvest;
  WhyNote why{*source, answers};
  policy::TaskView view;  ///< for decide_lease(); what only the actor knows is kept here between calls

  bool suspect = false;  ///< it has had a lease: what a probe finds may be its work

  uint64_t id() const { return source->id; }
  /// A new look at its answers. Fills the view; the hot path. `suspended_ns`: CLOCK_BOOTTIME less CLOCK_MONOTONIC.
  void read(int64_t suspended_ns);
  void set_order(uint32_t order, int64_t now_ns);
  void open(policy::LeaseKind kind, int64_t deadline_ns, int64_t begin_ns, int64_t now_ns);
  /// Takes the open lease back, if there is one; its end, for the kill rule, is the earlier of its deadline and
  /// `ended_ns`.
  void close(int64_t ended_ns, int64_t now_ns);
  /// Judges it by the kill rule, and where `audit` by its clock, too. True: it has just been killed, or had ended.
  bool judge(int64_t now_ns, bool audit, int64_t& look_ns);
  /// Leaves a window that it is in; returns the step time harvested in it.
  int64_t leave_window(int64_t end_ns, int64_t longest_ns);
  /// Its overrun, see HarvestMeter::overrun().
  int64_t overrun(int64_t now_ns, bool next_window);
  /// Created, initialised, profiled, saved, stopped or killed just now: it may cost training, in no lease for steps.
  bool in_transition() const;
  /// What it wants and holds of init, profile and save leases, into the view.
  void view_own();

 private:
  const int64_t grace_ns_;
  int64_t host_cpu_at_own_ns_ = -1;  // when the present init, profile or save lease began
};

}  // namespace freeride::worker
