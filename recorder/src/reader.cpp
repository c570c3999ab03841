#include "freeride/recorder/reader.hpp"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <system_error>

#include "columns.hpp"
#include "mcap.hpp"
#include "walk.hpp"

namespace freeride::recorder {
namespace {

// A time since 1970 as the file has it; what no clock shows is the latest.
int64_t as_wall(uint64_t ns) {
  return ns > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? std::numeric_limits<int64_t>::max()
                                                                         : static_cast<int64_t>(ns);
}

bool begins_with_one_of(std::string_view topic, const std::vector<std::string>& beginnings) {
  return beginnings.empty() ||
         std::any_of(beginnings.begin(), beginnings.end(), [&](const auto& each) { return topic.starts_with(each); });
}

struct ChunkAt {
  RecordAt record;
  int64_t begin_ns = 0, end_ns = 0;
};

struct Heads {
  FileInfo info;
  std::vector<ChunkAt> chunks;
  std::map<uint16_t, mcap::Schema> schemas;
  std::map<uint16_t, mcap::Channel> channels;
};

constexpr size_t kMaxChunks = 1 << 20;
constexpr uint64_t kMaxSmallRecord = 1 << 16;

Result<Heads> read_heads(const std::filesystem::path& file, Walk& walk) {
  Heads heads;
  heads.info.file = file;
  heads.info.size_bytes = walk.size();
  bool known = false;
  while (const auto record = walk.next()) {
    if (record->op == mcap::Op::kChunk) {
      const auto chunk = walk.chunk_head(*record);
      if (!chunk || heads.chunks.size() >= kMaxChunks) continue;
      const ChunkAt at{*record, as_wall(chunk->begin_ns), as_wall(chunk->end_ns)};
      heads.info.begin_ns = heads.chunks.empty() ? at.begin_ns : std::min(heads.info.begin_ns, at.begin_ns);
      heads.info.end_ns = std::max(heads.info.end_ns, at.end_ns);
      heads.chunks.push_back(at);
      continue;
    }
    const bool wanted =
        record->op == mcap::Op::kChannel || record->op == mcap::Op::kMetadata || record->op == mcap::Op::kSchema;
    if (!wanted || record->size > kMaxSmallRecord) continue;
    const auto content = walk.read(record->offset + mcap::kRecordHead, record->size);
    if (!content) break;
    if (record->op == mcap::Op::kMetadata) {
      if (auto clocks = read_metadata(*content)) heads.info.clocks = *clocks, known = true;
    } else if (record->op == mcap::Op::kSchema) {
      if (auto schema = mcap::read_schema(*content)) heads.schemas[schema->id] = *schema;
    } else if (auto channel = mcap::read_channel(*content)) {
      heads.channels[channel->id] = *channel;
    }
  }
  if (!known) {
    return Error{Code::kInvalidArgument, file.string() + " is no recording of freeride-recorder: it names no clocks",
                 ""};
  }
  heads.info.chunks = heads.chunks.size();
  const auto end = walk.read(walk.size() - std::min<uint64_t>(walk.size(), mcap::kMagic.size()), mcap::kMagic.size());
  heads.info.finished = end == mcap::kMagic && walk.size() > 2 * mcap::kMagic.size();
  return heads;
}

Result<std::vector<std::filesystem::path>> files_at(const std::filesystem::path& path) {
  std::error_code problem;
  if (!std::filesystem::is_directory(path, problem)) return std::vector{path};
  std::vector<std::filesystem::path> files;
  std::filesystem::directory_iterator entries(path, problem), end;
  for (; !problem && entries != end; entries.increment(problem)) {
    if (entries->path().extension() == ".mcap") files.push_back(entries->path());
  }
  if (problem) return errno_error("cannot read the folder " + path.string(), problem.value());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

struct Reader::Impl {
  struct Found {
    int64_t log_ns = 0, publish_ns = 0;
    uint16_t channel = 0;
    std::string_view data;
  };

  // Whether what comes before from_ns in the present file is wanted, where it is rare.
  bool looks_back() const { return range.states_before && next_file == first_file + 1; }

  bool is_wanted(std::string_view topic, int64_t log_ns) const {
    if (log_ns > range.to_ns || !begins_with_one_of(topic, range.topics)) return false;
    return log_ns >= range.from_ns || (looks_back() && !is_frequent(topic));
  }

  bool open_next_file() {
    while (next_file < files.size()) {
      const FileInfo& file = files[next_file++];
      if (file.chunks == 0 || (file.end_ns < range.from_ns && !looks_back()) || file.begin_ns > range.to_ns) continue;
      auto opened = Walk::open(file.file);
      if (!opened) continue;  // deleted meanwhile
      auto heads = read_heads(file.file, *opened);
      if (!heads) continue;
      walk.emplace(std::move(*opened));
      info = heads->info, chunks = std::move(heads->chunks), channels = std::move(heads->channels);
      schemas = std::move(heads->schemas);
      next_chunk = 0;
      return true;
    }
    return false;
  }

  void load(const ChunkAt& at) {
    found.clear(), made.clear(), next_found = 0, made_bytes = 0;
    const auto bytes = walk->read(at.record.offset + mcap::kRecordHead, at.record.size);
    const auto chunk = bytes ? mcap::read_chunk(*bytes) : std::nullopt;
    auto unpacked = chunk ? mcap::unpack(*chunk) : std::nullopt;
    if (!unpacked) {
      ++damaged;
      return;
    }
    records = std::move(*unpacked);
    std::string_view rest = records;
    bool has_stranger = false;  // what no channel, or no schema that this version knows, tells of
    while (const auto record = mcap::next_record(rest)) {
      if (record->op == mcap::Op::kChannel) {
        if (auto channel = mcap::read_channel(record->content)) channels[channel->id] = *channel;
      } else if (record->op == mcap::Op::kMessage) {
        const auto message = mcap::read_message(record->content);
        if (!message) continue;
        const auto channel = channels.find(message->channel);
        if (channel == channels.end() || !take(*message, channel->second)) has_stranger = true;
      }
    }
    damaged += has_stranger ? 1 : 0;
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.log_ns < b.log_ns; });
  }

  // False: it cannot be read.
  bool take(const mcap::Message& message, const mcap::Channel& channel) {
    const int64_t log_ns = as_wall(message.log_ns);
    const auto schema = schemas.find(channel.schema);
    if (schema != schemas.end() && schema->second.name == kColumnsSchema) {
      if (!begins_with_one_of(channel.topic, range.topics)) return true;
      const uint64_t distance =
          static_cast<uint64_t>(info.clocks.wall_ns) - static_cast<uint64_t>(info.clocks.monotonic_ns);
      const auto row = [&](int64_t at_ns, std::string_view event) {
        const int64_t at = as_wall(static_cast<uint64_t>(at_ns));
        return !is_wanted(channel.topic, at) || keep(at, at, message.channel, event);
      };
      return expand(message.data, static_cast<int64_t>(distance), row) && made_bytes <= mcap::kMaxChunkBytes;
    }
    if (channel.encoding == "json") {
      if (!is_wanted(channel.topic, log_ns)) return true;
      const auto shallow = [](int depth, auto, auto&) { return depth <= 24; };
      const auto event = nlohmann::json::parse(message.data, shallow, false);
      if (event.is_discarded() || !event.is_object()) return false;
      std::string bytes;
      nlohmann::json::to_msgpack(event, bytes);
      return keep(log_ns, as_wall(message.publish_ns), message.channel, bytes);
    }
    if (channel.schema != 0) return false;
    if (is_wanted(channel.topic, log_ns)) {
      found.push_back({log_ns, as_wall(message.publish_ns), message.channel, message.data});
    }
    return true;
  }

  // An event that does not lie in the chunk as it is. False: there is no room for more.
  bool keep(int64_t log_ns, int64_t publish_ns, uint16_t channel, std::string_view event) {
    made_bytes += event.size() + sizeof(Found) + sizeof(std::string);
    if (made_bytes > mcap::kMaxChunkBytes) return false;
    found.push_back({log_ns, publish_ns, channel, made.emplace_back(event)});
    return true;
  }

  // Makes something be found; false at the end of all.
  bool advance() {
    while (true) {
      if (!walk && !open_next_file()) return false;
      if (next_chunk == chunks.size()) {
        walk.reset();
        continue;
      }
      const ChunkAt& chunk = chunks[next_chunk++];
      if (chunk.begin_ns > range.to_ns || (chunk.end_ns < range.from_ns && !looks_back())) continue;
      load(chunk);
      if (!found.empty()) return true;
    }
  }

  Range range;
  std::vector<FileInfo> files;
  size_t next_file = 0;
  size_t first_file = 0;     // in which from_ns lies, or after which there is nothing
  std::optional<Walk> walk;  // the present file
  FileInfo info;
  std::vector<ChunkAt> chunks;
  size_t next_chunk = 0;
  std::map<uint16_t, mcap::Schema> schemas;
  std::map<uint16_t, mcap::Channel> channels;
  std::string records;           // of the present chunk
  std::deque<std::string> made;  // its events that were in columns
  uint64_t made_bytes = 0;
  std::vector<Found> found;
  size_t next_found = 0;
  uint64_t damaged = 0;
};

Reader::Reader() : impl_(std::make_unique<Impl>()) {}
Reader::~Reader() = default;

Result<std::unique_ptr<Reader>> Reader::open(const std::filesystem::path& path, Range range) {
  std::unique_ptr<Reader> reader(new Reader);
  reader->impl_->range = std::move(range);
  auto files = files_at(path);
  if (!files) return files.error();
  const bool alone = files->size() == 1 && files->front() == path;
  for (const auto& file : *files) {
    auto walk = Walk::open(file);
    auto heads = walk ? read_heads(file, *walk) : Result<Heads>(walk.error());
    if (heads) {
      reader->impl_->files.push_back(std::move(heads->info));
    } else if (alone || heads.error().code == Code::kPermission) {
      return heads.error();
    }  // else one that was deleted meanwhile, or has no first chunk yet
  }
  Impl& impl = *reader->impl_;
  if (impl.range.states_before) {
    for (size_t i = 0; i < impl.files.size(); ++i) {
      if (impl.files[i].chunks > 0 && impl.files[i].begin_ns <= impl.range.from_ns) impl.first_file = i;
    }
    impl.next_file = impl.first_file;
  }
  return reader;
}

std::optional<Recorded> Reader::next() {
  Impl& impl = *impl_;
  if (impl.next_found == impl.found.size() && !impl.advance()) return std::nullopt;
  const auto& found = impl.found[impl.next_found++];
  const Clocks& clocks = impl.info.clocks;
  return Recorded{
      impl.channels[found.channel].topic, found.data, found.log_ns, found.publish_ns,
      static_cast<int64_t>(static_cast<uint64_t>(clocks.wall_ns) - static_cast<uint64_t>(clocks.monotonic_ns))};
}

const std::vector<FileInfo>& Reader::files() const {
  return impl_->files;
}
uint64_t Reader::damaged() const {
  return impl_->damaged;
}

}  // namespace freeride::recorder
