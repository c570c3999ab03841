// Whole files and folders: reading with a bound, writing to the end.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride {

/// Reads a regular file of at most `limit` bytes. Does not wait at a FIFO. Blocks on the disk; any thread. Errors:
/// kNotFound, kPermission, kInvalidArgument (no regular file), kExhausted (larger).
Result<std::string> read_file(const std::filesystem::path& file, size_t limit);
/// The rest of the open file `fd`, which messages call `name`.
Result<std::string> read_file(int fd, const std::string& name, size_t limit);

/// Writes all of `bytes`. False: it could not, and errno says why. Async-signal-safe.
bool write_all(int fd, std::string_view bytes);

}  // namespace freeride
