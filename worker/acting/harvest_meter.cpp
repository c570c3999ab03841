#include "acting/harvest_meter.hpp"

#include <algorithm>
#include <utility>

#include "freeride/base/time.hpp"

namespace freeride::worker {

using pages::load_relaxed;

namespace {

constexpr int64_t kWindows = 16;

}  // namespace

void HarvestMeter::enter_window(int64_t opened_ns, int64_t now_ns) {
  if (in_window_) return;
  in_window_ = true;
  steps_at_entry_ns_ = in_steps_ns(now_ns);
  cpu_at_entry_ns_ = process_.cpu_ns();
  entered_ns_ = opened_ns;
  side_begin_ns_ = side_end_ns_ = 0;
}

void HarvestMeter::note_first_step(int64_t now_ns) {
  if (!in_window_ || side_begin_ns_ != 0) return;
  const int64_t first_ns = sane(load_relaxed(answers_.page().first_step_ns));
  if (first_ns >= entered_ns_ && first_ns <= now_ns) side_begin_ns_ = first_ns;
}

// A program's supervisor says how much its processes have executed in a step when they are stopped, not before.
int64_t HarvestMeter::in_steps_ns(int64_t now_ns) const {
  return measured_late() ? sane(load_relaxed(answers_.page().step_ns)) : answers_.in_steps_ns(now_ns);
}

int64_t HarvestMeter::leave_window(int64_t end_ns, int64_t longest_ns, bool measure_overrun) {
  note_first_step(end_ns);
  if (side_begin_ns_ > end_ns) side_begin_ns_ = 0;  // it was late: all of it is overrun
  if (side_begin_ns_ != 0 && !answers_.executing) {
    side_end_ns_ = std::clamp(sane(load_relaxed(answers_.page().last_paused_ns)), side_begin_ns_, end_ns);
  }
  in_window_ = false;
  const int64_t cpu_now_ns = process_.cpu_ns();
  steps_counted_ns_ = in_steps_ns(end_ns);
  int64_t harvested_ns = steps_counted_ns_ - steps_at_entry_ns_;
  // Where execution can be told from waiting, a step's time is not more than what was executed.
  // A program's clock is of what it executed outside of its leases.
  if (!source_.program && cpu_now_ns >= 0 && cpu_at_entry_ns_ >= 0) {
    const int64_t executed_ns = cpu_now_ns - cpu_at_entry_ns_;
    if (harvested_ns > 0) {
      recent_steps_ns_ += harvested_ns - recent_steps_ns_ / kWindows;
      recent_executed_ns_ += executed_ns - recent_executed_ns_ / kWindows;
    }
    harvested_ns = std::min(harvested_ns, executed_ns);
  }
  harvested_ns = std::clamp<int64_t>(harvested_ns, 0, std::max<int64_t>(0, longest_ns));
  source_.harvested_ns.fetch_add(harvested_ns, std::memory_order_relaxed);
  late_most_ns_ = std::max<int64_t>(0, longest_ns) - harvested_ns;
  overrunning_ = answers_.executing && measure_overrun;
  window_end_ns_ = end_ns;
  cpu_at_window_end_ns_ = cpu_now_ns;
  return harvested_ns;
}

int64_t HarvestMeter::take_late() {
  if (!measured_late()) return 0;
  const int64_t late_ns = std::clamp<int64_t>(in_steps_ns(0) - steps_counted_ns_, 0, std::exchange(late_most_ns_, 0));
  source_.harvested_ns.fetch_add(late_ns, std::memory_order_relaxed);
  return late_ns;
}

int64_t HarvestMeter::leave_ended(int64_t now_ns, int64_t longest_ns) {
  in_window_ = false;
  const int64_t most_ns = std::max<int64_t>(0, std::min(longest_ns, now_ns - entered_ns_));
  const int64_t harvested_ns =
      std::clamp<int64_t>(sane(load_relaxed(answers_.page().step_ns)) - steps_at_entry_ns_, 0, most_ns);
  source_.harvested_ns.fetch_add(harvested_ns, std::memory_order_relaxed);
  return harvested_ns;
}

int64_t HarvestMeter::overrun(int64_t now_ns, bool next_window) {
  if (answers_.executing && !next_window) return -1;
  if (by_cpu_clock_) {
    const int64_t real_ns = process_.cpu_ns();
    if (real_ns < 0 || cpu_at_window_end_ns_ < 0) {  // it ended meanwhile
      overrunning_ = false;
      return 0;
    }
    // What it says is finer than our look, which is later; it is believed within what its CPU clock allows.
    const int64_t claimed_ns = sane(load_relaxed(answers_.page().last_paused_cpu_ns));
    const bool credible = !answers_.executing && claimed_ns >= cpu_at_window_end_ns_ && claimed_ns <= real_ns;
    return note_overrun((credible ? claimed_ns : real_ns) - cpu_at_window_end_ns_);
  }
  const int64_t claimed_ns = sane(load_relaxed(answers_.page().last_paused_ns));
  return note_overrun((answers_.executing ? now_ns : std::min(claimed_ns, now_ns)) - window_end_ns_);
}

int64_t HarvestMeter::note_overrun(int64_t executed_ns) {
  overrunning_ = false;
  executed_ns = std::max<int64_t>(0, executed_ns);
  source_.overrun_ns.fetch_add(executed_ns, std::memory_order_relaxed);
  return executed_ns;
}

}  // namespace freeride::worker
