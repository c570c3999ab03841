// Task data: pieces of what a side task has written and printed, for its user.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"

namespace freeride::worker {

struct FilePiece {
  bus::FileReply reply;
  std::string bytes;
};

/// A piece of the file, or of what the folder holds, at `path` below the open `folder`, which the task may be changing
/// meanwhile. Follows no link, leaves neither folder nor file system, and opens regular files and folders only. Bounded
/// in size and work. Errors: kNotFound, kPermission (a link, or a thing that is neither), kInvalidArgument.
Result<FilePiece> read_piece(int folder, const std::string& path, uint64_t offset);

/// A piece of a log that consists of the files `older` and then `newer`. `offset` counts from the begin of `older`; -1:
/// the last lines. Where the log has been cut since, it goes on with what there is. Valid UTF-8. Errors: kNotFound.
Result<bus::LogReply> read_log_piece(const std::filesystem::path& older, const std::filesystem::path& newer,
                                     uint64_t dropped_bytes, int64_t offset);

}  // namespace freeride::worker
