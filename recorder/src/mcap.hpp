// The MCAP container (https://mcap.dev/spec, version 0) as bytes: records, and what a file ends with. Nothing of
// FreeRide's is in here, and no file is opened.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace freeride::recorder::mcap {

constexpr std::string_view kMagic{"\x89MCAP0\r\n", 8};
constexpr size_t kRecordHead = 9;  // opcode and length
/// Larger chunks are not believed: ours are some 1 MiB.
constexpr uint64_t kMaxChunkBytes = uint64_t{64} << 20;

enum class Op : uint8_t {
  kHeader = 0x01,
  kFooter = 0x02,
  kSchema = 0x03,
  kChannel = 0x04,
  kMessage = 0x05,
  kChunk = 0x06,
  kStatistics = 0x0b,
  kMetadata = 0x0c,
  kMetadataIndex = 0x0d,
  kSummaryOffset = 0x0e,
  kDataEnd = 0x0f,
};

using Strings = std::map<std::string, std::string>;

/// Puts little-endian fields together.
class Out {
 public:
  Out& u8(uint8_t value) { return number(value, 1); }
  Out& u16(uint16_t value) { return number(value, 2); }
  Out& u32(uint32_t value) { return number(value, 4); }
  Out& u64(uint64_t value) { return number(value, 8); }
  Out& text(std::string_view value) {
    u32(static_cast<uint32_t>(value.size()));
    return raw(value);
  }
  Out& strings(const Strings& values);
  Out& raw(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Out& number(uint64_t value, int width);
  std::string bytes_;
};

/// Takes them apart. What is not there reads as 0 or "", and ok() is false from then on.
class In {
 public:
  explicit In(std::string_view bytes) : rest_(bytes) {}
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint16_t u16() { return static_cast<uint16_t>(number(2)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  std::string_view text() { return raw(u32()); }
  std::string_view raw(uint64_t size);
  Strings strings();
  bool ok() const { return ok_; }
  bool empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

 private:
  uint64_t number(size_t width);
  std::string_view rest_;
  bool ok_ = true;
};

void append_record(std::string& to, Op op, std::string_view content);

struct Record {
  Op op{};
  std::string_view content;
};
/// The next record of `bytes`, which are shortened by it; nothing where they do not hold a whole one.
std::optional<Record> next_record(std::string_view& bytes);

/// What the messages of a channel are, where that is not said by their encoding alone.
struct Schema {
  uint16_t id = 0;  ///< 0: none
  std::string name, encoding, data;
};
void append_schema(std::string& to, const Schema& schema);
std::optional<Schema> read_schema(std::string_view content);

struct Channel {
  uint16_t id = 0, schema = 0;
  std::string topic, encoding = "msgpack";
};
void append_channel(std::string& to, const Channel& channel);
std::optional<Channel> read_channel(std::string_view content);

struct Message {
  uint16_t channel = 0;
  uint64_t log_ns = 0, publish_ns = 0;
  std::string_view data;
};
void append_message(std::string& to, const Message& message);
std::optional<Message> read_message(std::string_view content);

/// A chunk's head; `packed` are its records, compressed.
struct Chunk {
  uint64_t begin_ns = 0, end_ns = 0, size = 0;
  uint32_t crc = 0;
  std::string_view compression, packed;
};
constexpr size_t kChunkHead = 8 + 8 + 8 + 4 + 4;  // up to the name of its compression
std::optional<Chunk> read_chunk(std::string_view content);
/// Its records, if they are whole: nothing where size, checksum or compression are wrong.
std::optional<std::string> unpack(const Chunk& chunk);
/// The record of a chunk with these records, compressed by zstd.
std::string pack_chunk(std::string_view records, uint64_t begin_ns, uint64_t end_ns);

/// What the end of a file says of all that is before it.
struct Summary {
  std::map<uint16_t, Schema> schemas;
  std::map<uint16_t, Channel> channels;
  std::map<uint16_t, uint64_t> messages;  ///< by channel
  uint32_t chunks = 0;
  uint64_t begin_ns = 0, end_ns = 0;                  ///< of all chunks
  uint64_t metadata_offset = 0, metadata_length = 0;  ///< of the one record of metadata
  std::string metadata_name;
  uint32_t crc = 0;  ///< of everything so far

  void add_chunk(const Chunk& chunk);
  /// Data End, summary, footer and magic, for a file that has `offset` bytes.
  std::string end_of_file(uint64_t offset) const;
};

uint32_t crc32(uint32_t crc, std::string_view bytes);

}  // namespace freeride::recorder::mcap
