// HarvestMeter: what a side task executed in a window of bubbles, and past its end.
#pragma once

#include <cstdint>

#include "acting/answers.hpp"
#include "acting/processes.hpp"
#include "acting/task_source.hpp"

namespace freeride::worker {

/// A window is a stretch in which all ranks are in bubbles. Belongs to the acting thread. No allocation.
class HarvestMeter {
 public:
  /// All outlive it.
  HarvestMeter(TaskSource& source, const Answers& answers, TaskProcess& process, bool by_cpu_clock)
      : source_(source), answers_(answers), process_(process), by_cpu_clock_(by_cpu_clock) {}

  /// From now on under a lease that was opened at `opened_ns`.
  void enter_window(int64_t opened_ns, int64_t now_ns);
  bool in_window() const { return in_window_; }
  /// A new lease is about to be opened: the page has the first step of the latest only, and a window may have several.
  void note_first_step(int64_t now_ns);
  /// Leaves the window; returns the step time harvested in it, at most `longest_ns`.
  int64_t leave_window(int64_t end_ns, int64_t longest_ns, bool measure_overrun);
  /// Harvested in the window that was left, and known only now that overrun() is complete: of a program on a CPU.
  int64_t take_late();
  /// The same of a task that has ended in the window: the steps that it had made. Its CPU clock has gone with it.
  int64_t leave_ended(int64_t now_ns, int64_t longest_ns);
  /// Of the window just left: its first step began, and it had paused (0: not by then). Both 0: it made no step. For
  /// pictures.
  int64_t side_begin_ns() const { return side_begin_ns_; }
  int64_t side_end_ns() const { return side_end_ns_; }

  /// Whether execution past the window's end is being measured now, since leave_window().
  bool overruns() const { return overrunning_; }
  /// The measure, once it is complete: it has paused, or the `next_window` begins. -1: not yet.
  int64_t overrun(int64_t now_ns, bool next_window);
  /// The same of a task that was killed, having executed so long: its clocks go with it.
  int64_t overrun_of_killed(int64_t executed_ns) { return note_overrun(executed_ns); }
  /// On a CPU: in the steps of its latest windows it executed for less than half of their time, since other processes
  /// had its cores, or it waited.
  bool starved() const { return recent_executed_ns_ < recent_steps_ns_ / 2; }

  /// It is to stop: that executes without a lease.
  void stop_measuring() { overrunning_ = false; }

 private:
  int64_t note_overrun(int64_t executed_ns);
  bool measured_late() const { return source_.program && by_cpu_clock_; }
  int64_t in_steps_ns(int64_t now_ns) const;

  TaskSource& source_;
  const Answers& answers_;
  TaskProcess& process_;
  const bool by_cpu_clock_;
  bool in_window_ = false, overrunning_ = false;
  int64_t steps_at_entry_ns_ = 0, cpu_at_entry_ns_ = -1;
  int64_t steps_counted_ns_ = 0, late_most_ns_ = 0;  // when the window was left, and what may come of it yet
  int64_t entered_ns_ = 0, side_begin_ns_ = 0, side_end_ns_ = 0;
  int64_t recent_steps_ns_ = 0, recent_executed_ns_ = 0;  // of the latest windows with steps, older ones for less
  int64_t window_end_ns_ = 0, cpu_at_window_end_ns_ = -1;
};

}  // namespace freeride::worker
