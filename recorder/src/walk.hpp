// Going through a recording's records by their heads, without reading what is in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/recorder/file.hpp"
#include "mcap.hpp"

namespace freeride::recorder {

struct RecordAt {
  mcap::Op op{};
  uint64_t offset = 0;  ///< of its head
  uint64_t size = 0;    ///< of its content
  uint64_t end() const { return offset + mcap::kRecordHead + size; }
};

/// One thread. Blocks on the disk.
class Walk {
 public:
  /// Errors: kNotFound, kPermission, kInvalidArgument (it does not begin as an MCAP file does).
  static Result<Walk> open(const std::filesystem::path& file, bool to_write = false);

  /// The next record that is whole by its head; nothing at the end of the data, or where the file is cut off.
  std::optional<RecordAt> next();
  /// `size` bytes from `offset` on; nothing where the file does not have them.
  std::optional<std::string> read(uint64_t offset, uint64_t size) const;
  /// The head of a chunk: all but its records. Nothing: it makes no sense.
  std::optional<mcap::Chunk> chunk_head(const RecordAt& record) const;
  int fd() const { return fd_.get(); }
  uint64_t offset() const { return offset_; }
  uint64_t size() const { return size_; }

 private:
  Fd fd_;
  uint64_t offset_ = 0, size_ = 0;
};

/// The name under which a file's clocks are in it.
constexpr const char* kMetadataName = "freeride";
mcap::Strings metadata_of(const Clocks& clocks);
/// Nothing: the metadata of somebody else.
std::optional<Clocks> read_metadata(std::string_view content);

}  // namespace freeride::recorder
