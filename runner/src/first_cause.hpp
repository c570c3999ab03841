// FirstCause: which of what was seen at a task's end is its verdict.
#pragma once

#include <cstdint>

#include "outcome.hpp"

namespace freeride::runner {

/// Told of what the supervisor sees, in the order in which it sees it; the first cause is the verdict, the rest its
/// evidence. One exception, because last words are the plugin's process's own: who says that all is over in good order
/// and then executes without a lease has overran it, and has lied. Pure; not thread-safe.
class FirstCause {
 public:
  /// Last words have come, and no limit had been passed by then. Only the first ones count.
  void said(const Outcome& words);
  /// The supervisor kills the process because of `kill`.
  void killed(const policy::Verdict& kill);
  /// The process has ended: `status` as from waitpid, in `transition` (FREERIDE_IN_*, a claim). What this adds where
  /// something was seen before is a signal that was not the supervisor's.
  Outcome ended(int status, uint32_t transition);

  bool has_said() const { return said_; }
  bool was_killed() const { return killed_; }

 private:
  Outcome outcome_;
  bool said_ = false, killed_ = false;
};

}  // namespace freeride::runner
