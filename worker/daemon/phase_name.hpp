// Idle phases on a rank's page, for people. The page's bytes are another process's, which may change them at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "freeride/pages.h"

namespace freeride::worker {

/// The name of the idle phases that stand in history under this wait's number; "": the wait is a pipeline's, or the
/// page has no such name, or one that is no text. At most 31 bytes of UTF-8 without control characters.
std::string phase_name(const freeride_bubble_page& page, uint32_t wait);

/// An idle phase that is under way, and long enough for people to read of it.
struct PresentPhase {
  static constexpr int64_t kLeastNs = 1'000'000'000;
  uint64_t number = 0;    ///< never 0
  std::string name;       ///< never empty
  int64_t length_ns = 0;  ///< so far; at least kLeastNs
};
/// None: there is none, or its name is no text. `now_ns`: CLOCK_MONOTONIC.
std::optional<PresentPhase> present_phase(const freeride_bubble_page& page, int64_t now_ns);

}  // namespace freeride::worker
