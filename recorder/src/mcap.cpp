#include "mcap.hpp"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

namespace freeride::recorder::mcap {
namespace {

constexpr std::string_view kCompression = "zstd";
// A day of events is to be small, and a chunk takes a millisecond.
constexpr int kLevel = 5;

void append_group(std::string& summary, std::string& offsets, uint64_t base, Op op, const std::string& group) {
  if (group.empty()) return;
  append_record(offsets, Op::kSummaryOffset,
                Out().u8(static_cast<uint8_t>(op)).u64(base + summary.size()).u64(group.size()).bytes());
  summary += group;
}

}  // namespace

Out& Out::number(uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes_.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  return *this;
}

Out& Out::strings(const Strings& values) {
  Out inner;
  for (const auto& [key, value] : values) inner.text(key).text(value);
  return text(inner.bytes());
}

uint64_t In::number(size_t width) {
  const auto bytes = raw(width);
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = (value << 8) | static_cast<uint8_t>(bytes[i]);
  return value;
}

std::string_view In::raw(uint64_t size) {
  if (!ok_ || size > rest_.size()) {
    ok_ = false;
    return {};
  }
  const auto bytes = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return bytes;
}

Strings In::strings() {
  In inner(text());
  Strings values;
  while (inner.ok() && !inner.empty()) {
    const std::string key(inner.text());
    values[key] = inner.text();
  }
  ok_ = ok_ && inner.ok();
  return values;
}

void append_record(std::string& to, Op op, std::string_view content) {
  to += Out().u8(static_cast<uint8_t>(op)).u64(content.size()).bytes();
  to += content;
}

std::optional<Record> next_record(std::string_view& bytes) {
  In in(bytes);
  const auto op = static_cast<Op>(in.u8());
  const auto content = in.raw(in.u64());
  if (!in.ok()) return std::nullopt;
  bytes = in.rest();
  return Record{op, content};
}

void append_channel(std::string& to, const Channel& channel) {
  append_record(
      to, Op::kChannel,
      Out().u16(channel.id).u16(channel.schema).text(channel.topic).text(channel.encoding).strings({}).bytes());
}

void append_schema(std::string& to, const Schema& schema) {
  append_record(to, Op::kSchema,
                Out().u16(schema.id).text(schema.name).text(schema.encoding).text(schema.data).bytes());
}

std::optional<Schema> read_schema(std::string_view content) {
  In in(content);
  Schema schema;
  schema.id = in.u16();
  schema.name = in.text(), schema.encoding = in.text(), schema.data = in.text();
  if (!in.ok() || schema.id == 0) return std::nullopt;
  return schema;
}

std::optional<Channel> read_channel(std::string_view content) {
  In in(content);
  Channel channel;
  channel.id = in.u16();
  channel.schema = in.u16();
  channel.topic = in.text(), channel.encoding = in.text();
  if (!in.ok()) return std::nullopt;
  return channel;
}

void append_message(std::string& to, const Message& message) {
  // The event has its own sequence number.
  append_record(
      to, Op::kMessage,
      Out().u16(message.channel).u32(0).u64(message.log_ns).u64(message.publish_ns).raw(message.data).bytes());
}

std::optional<Message> read_message(std::string_view content) {
  In in(content);
  Message message;
  message.channel = in.u16();
  in.u32();
  message.log_ns = in.u64(), message.publish_ns = in.u64();
  message.data = in.rest();
  if (!in.ok()) return std::nullopt;
  return message;
}

std::optional<Chunk> read_chunk(std::string_view content) {
  In in(content);
  Chunk chunk;
  chunk.begin_ns = in.u64(), chunk.end_ns = in.u64(), chunk.size = in.u64();
  chunk.crc = in.u32();
  chunk.compression = in.text();
  chunk.packed = in.raw(in.u64());
  if (!in.ok() || !in.empty()) return std::nullopt;
  return chunk;
}

std::optional<std::string> unpack(const Chunk& chunk) {
  if (chunk.size > kMaxChunkBytes) return std::nullopt;
  std::string records;
  if (chunk.compression.empty()) {
    records = chunk.packed;
  } else if (chunk.compression == kCompression) {
    // Before memory is taken for it: what zstd's own head says.
    if (ZSTD_getFrameContentSize(chunk.packed.data(), chunk.packed.size()) != chunk.size) return std::nullopt;
    records.resize(chunk.size);
    const size_t size = ZSTD_decompress(records.data(), records.size(), chunk.packed.data(), chunk.packed.size());
    if (ZSTD_isError(size) || size != chunk.size) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (records.size() != chunk.size) return std::nullopt;
  if (chunk.crc != 0 && crc32(0, records) != chunk.crc) return std::nullopt;
  return records;
}

std::string pack_chunk(std::string_view records, uint64_t begin_ns, uint64_t end_ns) {
  thread_local const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context{ZSTD_createCCtx(), ZSTD_freeCCtx};
  std::string packed(ZSTD_compressBound(records.size()), '\0');
  const size_t size = context == nullptr ? 0
                                         : ZSTD_compressCCtx(context.get(), packed.data(), packed.size(),
                                                             records.data(), records.size(), kLevel);
  const bool compressed = size > 0 && !ZSTD_isError(size);
  if (compressed) packed.resize(size);
  Out head;
  head.u64(begin_ns).u64(end_ns).u64(records.size()).u32(crc32(0, records));
  head.text(compressed ? kCompression : "").u64(compressed ? packed.size() : records.size());
  std::string record;
  append_record(record, Op::kChunk, head.raw(compressed ? std::string_view(packed) : records).bytes());
  return record;
}

void Summary::add_chunk(const Chunk& chunk) {
  begin_ns = chunks == 0 ? chunk.begin_ns : std::min(begin_ns, chunk.begin_ns);
  end_ns = std::max(end_ns, chunk.end_ns);
  ++chunks;
}

std::string Summary::end_of_file(uint64_t offset) const {
  std::string end;
  append_record(end, Op::kDataEnd, Out().u32(crc).bytes());
  const uint64_t base = offset + end.size();

  std::string schema_group, channel_group, statistics, metadata;
  for (const auto& [id, schema] : schemas) append_schema(schema_group, schema);
  for (const auto& [id, channel] : channels) append_channel(channel_group, channel);
  uint64_t count = 0;
  Out counts;
  for (const auto& [channel, messages_of_it] : messages) {
    counts.u16(channel).u64(messages_of_it);
    count += messages_of_it;
  }
  append_record(statistics, Op::kStatistics,
                Out()
                    .u64(count)
                    .u16(static_cast<uint16_t>(schemas.size()))
                    .u32(static_cast<uint32_t>(channels.size()))
                    .u32(0)
                    .u32(metadata_length > 0 ? 1 : 0)
                    .u32(chunks)
                    .u64(begin_ns)
                    .u64(end_ns)
                    .text(counts.bytes())
                    .bytes());
  if (metadata_length > 0) {
    append_record(metadata, Op::kMetadataIndex,
                  Out().u64(metadata_offset).u64(metadata_length).text(metadata_name).bytes());
  }
  std::string summary, offsets;
  append_group(summary, offsets, base, Op::kSchema, schema_group);
  append_group(summary, offsets, base, Op::kChannel, channel_group);
  append_group(summary, offsets, base, Op::kStatistics, statistics);
  append_group(summary, offsets, base, Op::kMetadataIndex, metadata);
  const uint64_t offsets_at = base + summary.size();
  summary += offsets;
  // The checksum covers the footer up to itself.
  summary += Out().u8(static_cast<uint8_t>(Op::kFooter)).u64(8 + 8 + 4).u64(base).u64(offsets_at).bytes();
  end += summary;
  end += Out().u32(crc32(0, summary)).bytes();
  return end.append(kMagic);
}

uint32_t crc32(uint32_t crc, std::string_view bytes) {
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

}  // namespace freeride::recorder::mcap
