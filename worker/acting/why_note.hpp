// WhyNote: why one initialised side task makes no step, by what stood in its way lately.
#pragma once

#include <cstdint>

#include "acting/answers.hpp"
#include "acting/task_source.hpp"
#include "freeride/policy/why.hpp"

namespace freeride::worker {

/// Belongs to the acting thread; says it in TaskSource::why and longest_lease_ns. A window is a stretch in which all
/// ranks are in bubbles. No allocation, no lock.
class WhyNote {
 public:
  /// A training has bubbles again and again: the time between them explains nothing before it has lasted so long.
  static constexpr int64_t kNoWindowNs = 60'000'000'000;

  /// Both outlive it.
  WhyNote(TaskSource& source, const Answers& answers) : source_(source), answers_(answers) {}

  /// Of this look: what keeps the task from a lease; kNone: it has one.
  void look(policy::Why obstacle, bool in_window);
  void enter_window();
  void leave_window(int64_t now_ns);
  /// It was given a lease for steps.
  void lease_opened(int64_t length_ns, int64_t now_ns);
  /// It is to run from now on: what was before explains nothing.
  void begin_anew() { say(policy::Why::kNone); }
  /// Once a second: says it. In which it made steps, nothing stood in its way; else what did for its latest window.
  /// `starved`: its steps took much longer than it executed.
  void sum_up(int64_t now_ns, bool starved);

 private:
  void say(policy::Why why) { source_.why.store(why, std::memory_order_relaxed); }
  void rotate(int64_t now_ns);

  TaskSource& source_;
  const Answers& answers_;
  policy::Why now_ = policy::Why::kNone;
  policy::Why first_ = policy::Why::kNone;                              // of the present window's obstacles
  policy::Why last_ = policy::Why::kNone;                               // what the latest window came to
  bool leased_ = false;                                                 // in the present window
  bool closed_ = false;                                                 // a window has, since it was summed up
  int64_t last_window_ns_ = 0;                                          // 0: there was none
  uint64_t steps_ = 0, leases_ = 0, skipped_ = 0;                       // when it made its last step
  int64_t half_begin_ns_ = 0, longest_ns_ = 0, longest_before_ns_ = 0;  // of this half minute and the one before
};

}  // namespace freeride::worker
