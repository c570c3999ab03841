#include "walk.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

namespace freeride::recorder {
namespace {

constexpr uint64_t kMaxSmallRecord = 1 << 16;  // metadata, channels

int64_t number(const mcap::Strings& values, const char* key) {
  const auto found = values.find(key);
  int64_t value = 0;
  if (found != values.end()) std::from_chars(found->second.data(), found->second.data() + found->second.size(), value);
  return value;
}

std::string text(const mcap::Strings& values, const char* key) {
  const auto found = values.find(key);
  return found == values.end() ? "" : found->second;
}

}  // namespace

Result<Walk> Walk::open(const std::filesystem::path& file, bool to_write) {
  Walk walk;
  walk.fd_ = Fd(::open(file.c_str(), (to_write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!walk.fd_.valid() || fstat(walk.fd(), &info) != 0) {
    return errno_error("cannot read the recording " + file.string(), errno);
  }
  walk.size_ = S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
  if (walk.read(0, mcap::kMagic.size()) != mcap::kMagic) {
    return Error{Code::kInvalidArgument, file.string() + " is no recording: it does not begin as an MCAP file does",
                 ""};
  }
  walk.offset_ = mcap::kMagic.size();
  return walk;
}

std::optional<RecordAt> Walk::next() {
  const auto head = read(offset_, mcap::kRecordHead);
  if (!head) return std::nullopt;
  mcap::In in(*head);
  const auto op = static_cast<mcap::Op>(in.u8());
  const RecordAt record{op, offset_, in.u64()};
  if (op == mcap::Op::kDataEnd || op == mcap::Op::kFooter || static_cast<uint8_t>(op) == 0) return std::nullopt;
  if (record.size > size_ - offset_ - mcap::kRecordHead) return std::nullopt;
  offset_ = record.end();
  return record;
}

std::optional<std::string> Walk::read(uint64_t offset, uint64_t size) const {
  if (offset > size_ || size > size_ - offset) return std::nullopt;
  std::string bytes(size, '\0');
  for (size_t done = 0; done < size;) {
    const ssize_t n = pread(fd(), bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    done += static_cast<size_t>(n);
  }
  return bytes;
}

std::optional<mcap::Chunk> Walk::chunk_head(const RecordAt& record) const {
  const auto head = read(record.offset + mcap::kRecordHead, std::min<uint64_t>(record.size, mcap::kChunkHead));
  if (!head || head->size() < mcap::kChunkHead || record.size > 2 * mcap::kMaxChunkBytes) return std::nullopt;
  mcap::In in(*head);
  mcap::Chunk chunk;
  chunk.begin_ns = in.u64(), chunk.end_ns = in.u64(), chunk.size = in.u64();
  if (chunk.size > mcap::kMaxChunkBytes) return std::nullopt;
  return chunk;
}

mcap::Strings metadata_of(const Clocks& clocks) {
  return {{"boot_id", clocks.boot_id},
          {"host", clocks.host},
          {"monotonic_ns", std::to_string(clocks.monotonic_ns)},
          {"wall_ns", std::to_string(clocks.wall_ns)}};
}

std::optional<Clocks> read_metadata(std::string_view content) {
  mcap::In in(content.substr(0, kMaxSmallRecord));
  if (in.text() != kMetadataName) return std::nullopt;
  const auto values = in.strings();
  if (!in.ok()) return std::nullopt;
  return Clocks{number(values, "wall_ns"), number(values, "monotonic_ns"), text(values, "boot_id"),
                text(values, "host")};
}

}  // namespace freeride::recorder
