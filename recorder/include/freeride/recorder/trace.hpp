// A recording as Chrome trace JSON, which Perfetto opens: per rank its iterations, bubbles and side tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>

#include "freeride/recorder/reader.hpp"

namespace freeride::recorder {

/// Writes what `reader` has from here on, event by event: memory does not grow with the recording. Returns how many
/// spans were written. `at` is told each event's time. Blocks on the disk.
uint64_t write_trace(Reader& reader, std::ostream& out, const std::function<void(int64_t time_ns)>& at = {});

}  // namespace freeride::recorder
