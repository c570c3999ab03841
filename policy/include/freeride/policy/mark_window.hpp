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

/// A GPU's write wakes nobody, and a sleep of 15 us takes four times as long; so there is none where the mark is
/// expected. Beyond what was seen: its spread behind it, where looking on costs little, for few marks are late; and
/// before it, where every wait pays for it, a quarter of that. No longer than 4 ms, or a part of the time since the
/// edge: so a mark that comes seldom, whose time varies by milliseconds, may be looked for as long as it takes, and
/// many short waits may not take a core.
///
/// Tuned by the recorded marks of a 1F1B on four H200s with side tasks, iterations of 306 ms: 98.2 % are found, and
/// looking for them takes 0.9 to 1.7 % of a core. With 4 ms at most 96.2 %, for the last stage, which has one long wait
/// an iteration, loses a third of its marks; with half of the spread before 98.1 %, and 1.0 to 2.2 % of a core.
MarkWindow mark_window(const Span& usual);

}  // namespace freeride::policy
