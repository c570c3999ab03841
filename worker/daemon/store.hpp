// PluginStore: plugins by content. A name in the drop folder may change its content at any time; a SHA-256 never does.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride::worker {

/// Files <sha256>.so and <sha256>.py, mode 0444, that appear whole or not at all and are never changed. Several workers
/// and the manager of a host share the folder. Blocks on the disk. Any thread.
class PluginStore {
 public:
  /// `folder` is made when it is first needed.
  explicit PluginStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Stores `bytes` and returns their SHA-256; nothing is written when they are there already. The caller has checked
  /// them. Errors: kExhausted (disk full), kPermission.
  Result<std::string> put(std::string_view bytes);

  /// The file that holds content `sha256`, after hashing it: a damaged one is removed. Errors: kNotFound,
  /// kInvalidArgument (no SHA-256).
  Result<std::filesystem::path> get(const std::string& sha256);
  /// Of a content that nobody needs any more. One that is open somewhere stays open there.
  void remove(const std::string& sha256);

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

/// Whether `text` is 64 lower-case hexadecimal digits.
bool is_sha256(std::string_view text);

}  // namespace freeride::worker
