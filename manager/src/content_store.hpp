// ContentStore: plugins by their content, shared with the workers of the same host.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::manager {

/// Files <sha256>.so in one folder, written once (temporary file, fsync, rename; mode 0444) and never changed, so any
/// number of processes may use the folder at once. Calls block on the disk; any thread.
class ContentStore {
 public:
  /// The folder is made at the first put().
  explicit ContentStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Checks that `bytes` are a plugin (check_plugin_file()), keeps them and returns their SHA-256. `name` is for
  /// messages. Errors: the check's; kExhausted, kPermission, kUnavailable (the disk).
  Result<std::string> put(std::string_view bytes, const std::string& name);
  bool has(const std::string& sha256) const;
  /// The bytes, verified against their name. Errors: kInvalidArgument (not a SHA-256), kNotFound, kInternal (the file
  /// was changed).
  Result<std::string> get(const std::string& sha256) const;

  /// Everything that is kept, by SHA-256. Nothing when the folder cannot be read.
  std::vector<std::string> list() const;
  /// Drops a content that nobody needs any more. Who has it open keeps it.
  void remove(const std::string& sha256) const;

  /// 64 lower-case hex digits. Checked before a name from outside becomes part of a path.
  static bool is_sha256(const std::string& text);

 private:
  std::filesystem::path file_of(const std::string& sha256) const;  ///< the one that is there
  std::filesystem::path folder_;
};

/// Reads a regular file of at most `limit` bytes. Errors: kNotFound, kPermission, kInvalidArgument (no regular file),
/// kExhausted (larger).
Result<std::string> read_file(const std::filesystem::path& file, size_t limit);

}  // namespace freeride::manager
