// What can still be read of a damaged state file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "freeride/base/result.hpp"

struct sqlite3;

namespace freeride::manager {

/// A name beside `file` that nothing has: where what is damaged is kept.
std::filesystem::path name_aside(const std::filesystem::path& file);

/// Moves a state file, with what of it is still in its log, to a name beside it, which is returned. Errors: as rename.
Result<std::filesystem::path> move_aside(const std::filesystem::path& file);

/// Copies every row of `damaged` that can be read into the tables of `fresh`, from both ends of each table towards what
/// is damaged. `damaged` stays as it is. Returns the number of rows by table; nothing was copied where it is empty.
/// Blocks on the disk.
std::map<std::string, int64_t> copy_readable(const std::filesystem::path& damaged, sqlite3* fresh);

}  // namespace freeride::manager
