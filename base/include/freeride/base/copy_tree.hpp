// Copies a folder that somebody else has filled.
#pragma once

#include <cstdint>

#include "freeride/base/result.hpp"

namespace freeride {

/// What a file or folder counts beside its data, since a disk has only so many of them, too.
constexpr int64_t kEntryBytes = 4096;

struct CopyLimits {
  int64_t bytes = 0;          ///< of data, and kEntryBytes for each file and folder; also the longest file
  int64_t entries = 100'000;  ///< files and folders
  int depth = 32;
};

/// What was left out, for a line in a log.
struct Copied {
  int64_t bytes = 0, entries = 0;  ///< as in CopyLimits
  int64_t skipped = 0;             ///< links, sockets, devices, and what was beyond a limit
};

/// Copies regular files and folders from one open folder into another, both by descriptor. Follows no link in either,
/// keeps holes, makes files 0644 and folders 0755 whatever they were, overwrites nothing. Blocks. Errors: the first one
/// of reading or writing; what was copied before it stays.
Result<Copied> copy_tree(int from_folder, int to_folder, const CopyLimits& limits);

}  // namespace freeride
