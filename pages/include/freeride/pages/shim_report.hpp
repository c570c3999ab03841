// The shim page as a report: what a program under the shim of libcuda.so.1 says of itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/pages.h"

namespace freeride::pages {

/// A copy of a shim page. The program can write to the page as it likes. So numbers are cut to what can be added up,
/// and texts to printable ASCII, and nothing may be decided by them but the early end of
/// the program's own init lease. The fields are those of freeride_shim_page.
struct ShimReport {
  struct Name {
    std::string name;
    uint64_t calls = 0;
  };
  uint32_t processes = 0;
  uint64_t submissions = 0, waits = 0, waited_ns = 0, captured = 0, refused = 0, host_functions = 0, measured = 0;
  uint64_t measured_ns = 0, longest_ns = 0, leases = 0, lease_longest_ns = 0, too_long = 0, too_long_ns = 0, let_in = 0;
  uint64_t stalled = 0, late = 0, late_ns = 0, late_most_ns = 0, export_tables = 0, unlisted = 0, full = 0, full_ns = 0;
  uint64_t full_most_ns = 0, marks = 0, held = 0;
  std::string longest_name, too_long_name;
  std::vector<Name> unknown;  ///< functions of the driver that passed without being known
};

/// Reads the page of `fd` by pread: the program may cut its file at any time. Processes = 0: none has loaded the shim.
/// What lies past the file's end reads as zero. Any thread; blocks for a file's read. Errors: kInvalidArgument (not a
/// shim page, or another version), kInternal.
Result<ShimReport> read_shim_page(int fd);

}  // namespace freeride::pages
