#include "freeride/recorder/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "columns.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/host_id.hpp"
#include "freeride/base/time.hpp"
#include "mcap.hpp"
#include "walk.hpp"

namespace freeride::recorder {

Clocks Clocks::now() {
  Clocks clocks;
  clocks.wall_ns = clock_ns(CLOCK_REALTIME), clocks.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  if (auto id = read_file(std::filesystem::path("/proc/sys/kernel/random/boot_id"), 256)) {
    clocks.boot_id = id->substr(0, id->find('\n'));
  }
  clocks.host = host_id();
  return clocks;
}

struct FileWriter::Impl {
  Status append(const std::string& bytes) {
    if (write_all(fd.get(), bytes)) {
      summary.crc = mcap::crc32(summary.crc, bytes);
      size += bytes.size();
      return {};
    }
    const int problem = errno;
    // Half a record would hide all that comes after it.
    if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) broken = true;
    return errno_error("cannot write to the recording " + file.string(), problem);
  }

  std::filesystem::path file;
  Fd fd;
  Clocks clocks;
  uint64_t size = 0;
  bool broken = false;  // ends within a record
  mcap::Summary summary;

  // The next chunk.
  std::string heads, records;  // new channels, which come before it; its messages
  std::map<uint16_t, uint64_t> messages;
  uint64_t begin_ns = 0, end_ns = 0, floor_ns = 0, events = 0;

  // A topic's channel: of single events, or of columns. 0: there are too many.
  uint16_t channel_of(std::string_view topic, bool columns) {
    auto& known = columns ? column_channels : channels;
    const auto found = known.find(std::string(topic));
    if (found != known.end()) return found->second;
    if (channels.size() + column_channels.size() >= kMaxTopics) return 0;
    // Those before it are all in the file, or in this chunk: numbers of channels that found no room are used again.
    const auto id = static_cast<uint16_t>(channels.size() + column_channels.size() + 1);
    mcap::Channel channel{id, 0, std::string(topic)};
    if (columns || layout == Layout::kJson) channel.schema = kSchema;
    if (layout == Layout::kJson) channel.encoding = "json";
    mcap::append_channel(heads, channel);
    return known.emplace(channel.topic, channel.id).first->second;
  }
  void note(uint64_t log) {
    begin_ns = events == 0 ? log : std::min(begin_ns, log);
    end_ns = std::max(end_ns, log);
    ++events;
  }
  // False: not for columns.
  bool add_row(uint16_t channel, int64_t log_ns, std::string_view payload) {
    Columns& rows = columns.try_emplace(channel, clocks.wall_of(0)).first->second;  // the distance of its two clocks
    const auto floor = static_cast<int64_t>(floor_ns);
    auto read_ns = rows.add(payload, log_ns, floor);
    if (!read_ns && rows.rows() > 0) {
      end_rows(channel, rows);
      read_ns = rows.add(payload, log_ns, floor);
    }
    if (!read_ns) return false;
    ++waiting_rows;
    note(static_cast<uint64_t>(std::max<int64_t>(*read_ns, 0)));
    return true;
  }
  void end_rows(uint16_t channel, Columns& rows) {
    waiting_rows -= rows.rows();
    const auto first = static_cast<uint64_t>(std::max<int64_t>(rows.first_ns(), 0));
    const auto last = static_cast<uint64_t>(std::max<int64_t>(rows.last_ns(), 0));
    mcap::append_message(records, {channel, last, first, rows.take()});
    ++messages[channel];
  }
  void end_all_rows() {
    for (auto& [channel, rows] : columns) {
      if (rows.rows() > 0) end_rows(channel, rows);
    }
  }

  static constexpr uint16_t kSchema = 1;  // the one that a file has
  static_assert(kMaxTopics < UINT16_MAX);
  Layout layout = Layout::kColumns;
  std::unordered_map<std::string, uint16_t> channels, column_channels;
  std::map<uint16_t, Columns> columns;  // by channel: rows of the next chunk
  size_t waiting_rows = 0;
};

FileWriter::FileWriter() : impl_(std::make_unique<Impl>()) {}
FileWriter::~FileWriter() = default;

Result<std::unique_ptr<FileWriter>> FileWriter::create(const std::filesystem::path& file, const Clocks& clocks,
                                                       std::optional<gid_t> group, Layout layout) {
  std::unique_ptr<FileWriter> writer(new FileWriter);
  Impl& impl = *writer->impl_;
  impl.file = file, impl.clocks = clocks, impl.layout = layout;
  impl.fd = Fd(open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!impl.fd.valid()) return errno_error("cannot make the recording " + file.string(), errno);
  Status made;
  if (group && fchown(impl.fd.get(), static_cast<uid_t>(-1), *group) != 0) {
    made = errno_error("cannot give " + file.string() + " to its group", errno, "set --group");
  } else if (fchmod(impl.fd.get(), 0640) != 0) {
    made = errno_error("cannot let the group read " + file.string(), errno);
  }
  std::string begin(mcap::kMagic);
  mcap::append_record(begin, mcap::Op::kHeader, mcap::Out().text("").text("freeride-recorder").bytes());
  impl.summary.metadata_offset = begin.size(), impl.summary.metadata_name = kMetadataName;
  mcap::append_record(begin, mcap::Op::kMetadata, mcap::Out().text(kMetadataName).strings(metadata_of(clocks)).bytes());
  impl.summary.metadata_length = begin.size() - impl.summary.metadata_offset;
  if (layout == Layout::kColumns) {
    impl.summary.schemas[Impl::kSchema] = {Impl::kSchema, std::string(kColumnsSchema), "text",
                                           std::string(kColumnsText)};
  } else if (layout == Layout::kJson) {
    impl.summary.schemas[Impl::kSchema] = {Impl::kSchema, "freeride.event", "jsonschema", R"({"type":"object"})"};
  }
  for (const auto& [id, schema] : impl.summary.schemas) mcap::append_schema(begin, schema);
  if (made) made = impl.append(begin);
  if (!made) {
    unlink(file.c_str());
    return made.error();
  }
  return writer;
}

bool FileWriter::add(std::string_view topic, int64_t log_ns, int64_t publish_ns, std::string_view payload) {
  Impl& impl = *impl_;
  if (impl.layout == Layout::kColumns && is_frequent(topic)) {
    const uint16_t channel = impl.channel_of(topic, true);
    if (channel == 0) return false;
    if (impl.add_row(channel, log_ns, payload)) return true;
  }
  std::string json;
  if (impl.layout == Layout::kJson) {
    auto event = is_shallow(payload) ? nlohmann::json::from_msgpack(payload, true, false) : nlohmann::json();
    if (!event.is_object()) event = nlohmann::json::object();  // it was damaged
    json = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    payload = json;
  }
  const uint16_t channel = impl.channel_of(topic, false);
  if (channel == 0) return false;
  const uint64_t log = std::max(static_cast<uint64_t>(std::max<int64_t>(log_ns, 0)), impl.floor_ns);
  const auto publish = static_cast<uint64_t>(std::max<int64_t>(publish_ns, 0));
  mcap::append_message(impl.records, {channel, log, publish, payload});
  impl.note(log);
  ++impl.messages[channel];
  return true;
}

Status FileWriter::flush() {
  Impl& impl = *impl_;
  if (impl.events == 0) return {};
  impl.end_all_rows();
  std::string bytes = impl.heads;
  bytes += mcap::pack_chunk(impl.records, impl.begin_ns, impl.end_ns);
  Status written =
      impl.broken ? Status(Error{Code::kExhausted, "the recording " + impl.file.string() + " ends within a record", ""})
                  : impl.append(bytes);
  if (written) {
    std::string_view heads = impl.heads;
    while (const auto record = mcap::next_record(heads)) {
      if (const auto channel = mcap::read_channel(record->content)) impl.summary.channels[channel->id] = *channel;
    }
    std::string_view rest = std::string_view(bytes).substr(impl.heads.size());
    const auto record = mcap::next_record(rest);
    if (const auto chunk = mcap::read_chunk(record->content)) impl.summary.add_chunk(*chunk);
    for (const auto& [channel, count] : impl.messages) impl.summary.messages[channel] += count;
    impl.floor_ns = impl.end_ns;
  }
  drop();
  return written;
}

void FileWriter::drop() {
  Impl& impl = *impl_;
  // Channels that the file does not have are made again when they are next used.
  const auto is_lost = [&](const auto& channel) { return !impl.summary.channels.contains(channel.second); };
  std::erase_if(impl.channels, is_lost);
  std::erase_if(impl.column_channels, is_lost);
  std::erase_if(impl.columns, [&](const auto& rows) { return !impl.summary.channels.contains(rows.first); });
  for (auto& [channel, rows] : impl.columns) rows.clear();
  impl.heads.clear(), impl.records.clear(), impl.messages.clear();
  impl.events = impl.waiting_rows = 0;
}

Status FileWriter::finish() {
  Impl& impl = *impl_;
  if (auto flushed = flush(); !flushed) return flushed;
  const std::string end = impl.summary.end_of_file(impl.size);
  if (auto written = impl.append(end); !written) return written;
  if (fdatasync(impl.fd.get()) != 0) return errno_error("cannot write to the recording " + impl.file.string(), errno);
  return {};
}

const Clocks& FileWriter::clocks() const {
  return impl_->clocks;
}
const std::filesystem::path& FileWriter::file() const {
  return impl_->file;
}
size_t FileWriter::buffered() const {
  constexpr size_t kRowBytes = 64;  // before it is compressed; about
  return impl_->records.size() + kRowBytes * impl_->waiting_rows;
}
uint64_t FileWriter::buffered_events() const {
  return impl_->events;
}
uint64_t FileWriter::size_bytes() const {
  return impl_->size;
}

namespace {

// What a chunk's records add to the summary. False: the chunk is not whole.
bool count_messages(const Walk& walk, const RecordAt& at, mcap::Summary& summary, uint64_t& events) {
  if (!walk.chunk_head(at)) return false;
  const auto bytes = walk.read(at.offset, at.end() - at.offset);
  if (!bytes) return false;
  const auto chunk = mcap::read_chunk(std::string_view(*bytes).substr(mcap::kRecordHead));
  const auto records = chunk ? mcap::unpack(*chunk) : std::nullopt;
  if (!records) return false;
  std::map<uint16_t, uint64_t> messages;
  uint64_t events_of_it = 0;
  std::string_view rest = *records;
  while (const auto record = mcap::next_record(rest)) {
    if (record->op != mcap::Op::kMessage) continue;
    const auto message = mcap::read_message(record->content);
    const auto channel = message ? summary.channels.find(message->channel) : summary.channels.end();
    if (channel == summary.channels.end()) return false;
    ++messages[message->channel];
    const auto schema = summary.schemas.find(channel->second.schema);
    const bool columns = schema != summary.schemas.end() && schema->second.name == kColumnsSchema;
    events_of_it += columns ? rows_of(message->data) : 1;
  }
  if (!rest.empty()) return false;
  summary.add_chunk(*chunk);
  for (const auto& [channel, count] : messages) summary.messages[channel] += count;
  events += events_of_it;
  return true;
}

bool is_finished(const Walk& walk) {
  constexpr uint64_t kFooter = mcap::kRecordHead + 8 + 8 + 4;
  const uint64_t end = kFooter + mcap::kMagic.size();
  if (walk.size() < end) return false;
  const auto bytes = walk.read(walk.size() - end, end);
  return bytes && static_cast<mcap::Op>((*bytes)[0]) == mcap::Op::kFooter && bytes->ends_with(mcap::kMagic);
}

}  // namespace

Result<Recovered> recover(const std::filesystem::path& file) {
  auto walk = Walk::open(file, true);
  if (!walk) return walk.error();
  Recovered recovered;
  recovered.was_finished = is_finished(*walk);
  if (recovered.was_finished) return recovered;

  mcap::Summary summary;
  uint64_t good = 0;  // so much is whole, and ends with a chunk
  mcap::Summary at_good;
  while (const auto record = walk->next()) {
    if (record->op == mcap::Op::kChunk) {
      if (!count_messages(*walk, *record, summary, recovered.events)) break;
      good = record->end(), at_good = summary;
      continue;
    }
    constexpr uint64_t kMaxRecord = 1 << 20;
    const auto bytes =
        record->size <= kMaxRecord ? walk->read(record->offset, record->end() - record->offset) : std::nullopt;
    if (!bytes) break;
    const std::string_view content = std::string_view(*bytes).substr(mcap::kRecordHead);
    if (record->op == mcap::Op::kMetadata && read_metadata(content)) {
      summary.metadata_offset = record->offset, summary.metadata_length = bytes->size();
      summary.metadata_name = kMetadataName;
    } else if (record->op == mcap::Op::kChannel) {
      const auto channel = mcap::read_channel(content);
      if (!channel) break;
      summary.channels[channel->id] = *channel;
    } else if (record->op == mcap::Op::kSchema) {
      const auto schema = mcap::read_schema(content);
      if (!schema) break;
      summary.schemas[schema->id] = *schema;
    }
  }
  if (good == 0) {
    return Error{Code::kInvalidArgument, "the recording " + file.string() + " has no whole chunk", "delete it"};
  }
  // Channels of a chunk that is lost stay behind the cut.
  for (uint64_t offset = 0; offset < good;) {
    const auto bytes = walk->read(offset, std::min<uint64_t>(good - offset, 1 << 20));
    if (!bytes) return errno_error("cannot read the recording " + file.string(), EIO);
    at_good.crc = mcap::crc32(at_good.crc, *bytes);
    offset += bytes->size();
  }
  recovered.cut_bytes = walk->size() - good;
  const std::string end = at_good.end_of_file(good);
  if (ftruncate(walk->fd(), static_cast<off_t>(good)) != 0 || lseek(walk->fd(), 0, SEEK_END) < 0 ||
      !write_all(walk->fd(), end) || fdatasync(walk->fd()) != 0) {
    return errno_error("cannot end the recording " + file.string(), errno);
  }
  return recovered;
}

}  // namespace freeride::recorder
