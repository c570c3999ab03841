#include "piece_clock.hpp"

#include <algorithm>

#include "freeride/base/time.hpp"

namespace freeride::runner {

int64_t PieceClock::end(int64_t end_ns) {
  const int64_t duration_ns = end_ns - begin_ns_;
  const int64_t within_ns = std::max<int64_t>(0, std::min(end_ns, lease_.deadline_ns()) - begin_ns_);
  answer_.count_piece(duration_ns, within_ns);
  begin_ns_ = end_ns;
  if (!by_cpu_clock_) return duration_ns;
  const int64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  const int64_t executed_ns = cpu_ns - cpu_ns_;
  cpu_ns_ = cpu_ns;
  // One whose lease ended under it was, most likely, preempted by the training for as long as that wished: what it
  // takes by itself is its CPU time, not this.
  const bool ended = end_ns > lease_.deadline_ns() || !lease_.unchanged();
  return ended ? std::min(duration_ns, std::max<int64_t>(1, executed_ns)) : duration_ns;
}

void PieceClock::give_up() {
  if (by_cpu_clock_) cpu_ns_ = clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

void PieceClock::pause(int64_t now_ns) {
  answer_.paused(now_ns);
  if (!by_cpu_clock_) return;
  cpu_ns_ = clock_ns(CLOCK_THREAD_CPUTIME_ID);
  answer_.paused_cpu(clock_ns(CLOCK_PROCESS_CPUTIME_ID));
}

}  // namespace freeride::runner
