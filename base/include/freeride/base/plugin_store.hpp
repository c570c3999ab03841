// PluginStore: plugins by content. A name in the drop folder may change its content at any time; a SHA-256 never does.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride {

/// Files <sha256>.so and <sha256>.py, mode 0444, that appear whole or not at all and are never changed. The manager and
/// the workers of a host share the folder. A file that is not what its name says is removed by whoever finds it, and a
/// line in the log says so. Blocks on the disk. Any thread, any number of processes.
class PluginStore {
 public:
  /// `folder` is made when it is first needed.
  explicit PluginStore(std::filesystem::path folder);

  /// Checks that `bytes` are a plugin (check_plugin_file(), which calls them `name`), keeps them and returns their
  /// SHA-256. Nothing is written when they are there already, undamaged. Errors: the check's; kExhausted (disk full),
  /// kPermission.
  /// `ends`, where given, becomes true when there is no more time: then kUnavailable, at the next opportunity.
  Result<std::string> put(std::string_view bytes, const std::string& name, const std::atomic<bool>* ends = nullptr);
  /// put() of what came by its hash, without a file name.
  Result<std::string> put(std::string_view bytes);

  /// The file that holds content `sha256`, after hashing it. Errors: kNotFound (not there, or removed as damaged),
  /// kInvalidArgument (no SHA-256).
  Result<std::filesystem::path> get(const std::string& sha256) const;
  /// The bytes of content `sha256`, after hashing them. Errors: get()'s.
  Result<std::string> read(const std::string& sha256) const;
  /// At most `most` bytes of content `sha256` from `offset` on. Only the first piece is given after hashing all of it,
  /// and that once, as long as the file is not touched: who joins them has to hash them. Errors: get()'s.
  Result<std::string> read_piece(const std::string& sha256, uint64_t offset, uint64_t most) const;
  /// Whether there is a file for it, undamaged or not: cheap.
  bool has(const std::string& sha256) const;

  /// Everything that is kept, by SHA-256. Nothing when the folder cannot be read.
  std::vector<std::string> list() const;
  /// Of a content that nobody needs any more. One that is open somewhere stays open there.
  void remove(const std::string& sha256) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  Result<std::filesystem::path> find(const std::string& sha256, std::string* bytes) const;
  struct Hashed;
  std::filesystem::path folder_;
  std::shared_ptr<Hashed> hashed_;  // copies of this share it
};

/// Whether `text` is 64 lower-case hexadecimal digits. To be asked before a hash from outside becomes part of a path.
bool is_sha256(std::string_view text);

}  // namespace freeride
