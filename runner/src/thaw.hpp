// Thaw: a plugin's process that stops itself between leases, and its supervisor, which lets it go on.
#pragma once

#include <cstdint>
#include <functional>

#include "freeride/pages.h"

namespace freeride::runner {

/// What the two share beside the pages, in memory that both have mapped.
struct Thaw {
  /// Futex word. 0: the process goes on; else it stops itself now, or has, and this is one more than the lease page's
  /// word as it has read it.
  uint32_t frozen = 0;
};

/// Of the process itself: stops it until its supervisor sees another lease, or an order to stop. `sequence`: of what it
/// has read of the lease page, whose futex word is `word`; where that has changed since, it goes on.
void freeze(Thaw& thaw, const uint32_t& word, uint32_t sequence);

/// Of the supervisor: lets the process go on, by `go_on`, whenever the page has an open lease, or the order to stop.
/// Blocks until `go_on` says that there is no such process any more, or for ever where the page does not change. Sleeps
/// until the process stops itself for the first time, then on the page.
void keep_thawing(const std::function<bool()>& go_on, const freeride_lease_page& lease_page, const Thaw& thaw);

}  // namespace freeride::runner
