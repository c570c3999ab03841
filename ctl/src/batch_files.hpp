// Batch files: a batch's folder OUTPUT.parts: where each item lies in the input, and what members need to know
// (docs/batches.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

struct BatchFiles {
  std::filesystem::path input, output;  ///< absolute
  std::string kind;                     ///< "jsonl", "text" or "files"; empty: by what the input is
  uint32_t tries = 3;
  bool in_order = false, force = false;

  std::filesystem::path folder() const { return output.string() + ".parts"; }
  /// "scores.failed.jsonl" of "scores.jsonl".
  std::filesystem::path failed() const;
};

/// What the sandbox of a member calls them.
constexpr const char* kBatchInput = "/batch/input";
constexpr const char* kBatchOutput = "/batch/output";

/// Makes the paths absolute and plain, and finds the kind. Errors: kNotFound, kPermission, kInvalidArgument (neither
/// file nor folder), kAlreadyExists (there is an output, or a batch's folder, and `force` is not set).
Status check_batch_files(BatchFiles& files);

/// Makes the folder, anew where there is one. Returns the number of items; with 0 the output is there, empty, and no
/// folder. Blank lines are no items; nor is anything in a folder that is no regular file, or has a name with a "."
/// in front. Errors: the disk's.
Result<uint64_t> make_batch_folder(const BatchFiles& files, const std::string& id);

void remove_batch_folder(const std::filesystem::path& folder);

}  // namespace freeride::ctl
