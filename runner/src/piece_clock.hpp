// PieceClock: how long the piece that executes takes.
#pragma once

#include <cstdint>

#include "answer.hpp"
#include "held_lease.hpp"

namespace freeride::runner {

/// Measures steps and their pieces, and counts them on the answer page. Main thread; nothing blocks. Answer and lease
/// are the caller's.
class PieceClock {
 public:
  PieceClock(Answer& answer, const HeldLease& lease, bool by_cpu_clock)
      : answer_(answer), lease_(lease), by_cpu_clock_(by_cpu_clock) {}

  void begin(int64_t now_ns) { begin_ns_ = now_ns; }
  int64_t begun_ns() const { return begin_ns_; }
  /// Counts the piece that ends now, and begins the next; returns what it teaches of how long such a piece takes.
  int64_t end(int64_t end_ns);
  /// What has been executed since the last end belongs to no piece.
  void give_up();
  /// Nothing executes any more: says so.
  void pause(int64_t now_ns);

 private:
  Answer& answer_;
  const HeldLease& lease_;
  const bool by_cpu_clock_;
  int64_t begin_ns_ = 0;
  int64_t cpu_ns_ = 0;  ///< the main thread's CPU clock at the last end or pause; only read by_cpu_clock_
};

}  // namespace freeride::runner
