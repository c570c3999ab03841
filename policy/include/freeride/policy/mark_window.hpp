// When a GPU's mark is to be looked for without sleeping.
#pragma once

#include <cstdint>
#include <span>

#include "freeride/base/clock.hpp"

namespace freeride::policy {

/// The shortest and the longest of some times.
struct Span {
  int64_t least_ns = 0, most_ns = 0;
};

/// Of the times between an edge and the mark behind it, of late; sorts them. What is off by a factor of two says
/// nothing of the others: an evaluation or a checkpoint lay between. 0, 0 of none.
Span usual_span(std::span<int64_t> times_ns);

/// Counted from the edge; 0, 0: not known.
struct MarkWindow {
  int64_t from_ns = 0, to_ns = 0;
};

/// A GPU's write wakes nobody, and a sleep of 15 us takes four times as long. So the hook does not sleep while the mark
/// is expected. The window reaches beyond the times that were seen. Behind them it is longer by their spread: that
/// costs little, since few marks are late. Before them it is longer by a quarter of the spread, since every wait pays
/// for it.
///
/// The window is no longer than 4 ms, or than a part of the time since the edge. So a mark that comes seldom may be
/// looked for as long as its time varies, and many short waits do not take a core.
///
/// Tuned by the recorded marks of a 1F1B on four H200s with side tasks, iterations of 306 ms:
///
///   window                                     | marks found | processor time, of a core
///   this one                                   | 98.2 %      | 0.9 to 1.7 %
///   never longer than 4 ms                     | 96.2 %      | (the last stage loses a third of its marks)
///   half of the spread before the times        | 98.1 %      | 1.0 to 2.2 %
MarkWindow mark_window(const Span& usual);

}  // namespace freeride::policy
