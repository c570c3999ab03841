// Copies a folder that somebody else has filled.
#pragma once

#include <cstdint>

#include "freeride/base/result.hpp"

namespace freeride {

struct CopyLimits {
  int64_t bytes = 0;          ///< of data; also the longest file
  int64_t entries = 100'000;  ///< files and folders
  int depth = 32;
};

/// What was left out, for a line in a log.
struct Copied {
  int64_t bytes = 0, entries = 0;
  int64_t skipped = 0;  ///< links, sockets, devices, and what was beyond a limit
};

/// Copies regular files and folders from one open folder into another, both by descriptor. Follows no link in either,
/// keeps holes, makes files 0644 and folders 0755 whatever they were, overwrites nothing. Blocks. Errors: the first one
/// of reading or writing; what was copied before it stays.
Result<Copied> copy_tree(int from_folder, int to_folder, const CopyLimits& limits);

}  // namespace freeride
