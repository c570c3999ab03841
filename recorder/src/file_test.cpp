// Writing, reading, recovering: one file.
#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>

#include "freeride/base/testing/temp_folder.hpp"
#include "freeride/recorder/file.hpp"
#include "freeride/recorder/reader.hpp"

using freeride::testing::slurp;
using freeride::testing::TempFolder;

namespace freeride::recorder {
namespace {

constexpr int64_t kBegin = 1'700'000'000'000'000'000;
const Clocks kClocks{kBegin, 5'000, "boot", "host"};

struct Kept {
  std::string topic, payload;
  int64_t time_ns;
  bool operator==(const Kept& other) const = default;
};

std::vector<Kept> read(const std::filesystem::path& path, const Range& range = {}) {
  auto reader = Reader::open(path, range);
  REQUIRE(reader.ok());
  std::vector<Kept> all;
  while (const auto event = (*reader)->next()) {
    CHECK(event->wall_minus_monotonic_ns == kBegin - 5'000);
    all.push_back({std::string(event->topic), std::string(event->payload), event->time_ns});
  }
  return all;
}

// Three chunks of some events each, the last not ended where `finish` is false.
std::vector<Kept> write(const std::filesystem::path& file, bool finish) {
  auto writer = FileWriter::create(file, kClocks);
  REQUIRE(writer.ok());
  std::vector<Kept> written;
  for (int chunk = 0; chunk < 3; ++chunk) {
    for (int i = 0; i < 4; ++i) {
      const int64_t at = kBegin + 1000 * chunk + 10 * i;
      written.push_back({"topic/" + std::to_string(i % 2 + chunk), "payload " + std::to_string(at), at});
      REQUIRE((*writer)->add(written.back().topic, at, at, written.back().payload));
    }
    REQUIRE((*writer)->flush().ok());
  }
  if (finish) REQUIRE((*writer)->finish().ok());
  return written;
}

void overwrite(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE("events keep their own names when 65,535 new topics have found no room on the disk") {
  TempFolder dir;
  const auto file = dir.path() / "a.mcap";
  auto writer = FileWriter::create(file, kClocks);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->add("topic/first", kBegin, kBegin, "first"));
  REQUIRE((*writer)->flush().ok());
  size_t taken = 0;
  for (int i = 0; i < UINT16_MAX; ++i) {
    taken += (*writer)->add("topic/lost", kBegin, kBegin, "lost") ? 1 : 0;
    (*writer)->drop();
  }
  CHECK(taken == UINT16_MAX);
  REQUIRE((*writer)->add("topic/last", kBegin, kBegin, "last"));
  REQUIRE((*writer)->finish().ok());
  CHECK(read(file) == std::vector<Kept>{{"topic/first", "first", kBegin}, {"topic/last", "last", kBegin}});
}

TEST_CASE("what is written is read, in order of time and within a range; the file is for its group to read") {
  TempFolder dir;
  const auto file = dir.path() / "a.mcap";
  const auto written = write(file, true);
  CHECK(read(file) == written);
  CHECK(read(dir.path()) == written);
  Range range;
  range.from_ns = kBegin + 10, range.to_ns = kBegin + 1000;
  CHECK(read(file, range) == std::vector<Kept>(written.begin() + 1, written.begin() + 5));
  range.topics = {"topic/1"};
  CHECK(read(file, range).size() == 3);
  range.states_before = true;  // these topics are rare ones
  CHECK(read(file, range).size() == 3);
  range.topics = {};
  CHECK(read(file, range).size() == 5);
  struct stat info {};
  REQUIRE(stat(file.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0640);
  auto reader = Reader::open(file);
  REQUIRE(reader.ok());
  REQUIRE((*reader)->files().size() == 1);
  CHECK((*reader)->files()[0].finished);
  CHECK((*reader)->files()[0].begin_ns == kBegin);
  CHECK((*reader)->files()[0].end_ns == kBegin + 2030);
  CHECK((*reader)->files()[0].clocks.boot_id == "boot");
}

TEST_CASE("an event that is late is at the end of the last chunk; within a chunk they are sorted") {
  TempFolder dir;
  auto writer = FileWriter::create(dir.path() / "a.mcap", kClocks);
  REQUIRE(writer.ok());
  CHECK((*writer)->add("t/a", kBegin + 20, 0, "2"));
  CHECK((*writer)->add("t/a", kBegin + 10, 0, "1"));
  REQUIRE((*writer)->flush().ok());
  CHECK((*writer)->add("t/a", kBegin + 15, 0, "3"));
  REQUIRE((*writer)->finish().ok());
  const auto events = read(dir.path());
  REQUIRE(events.size() == 3);
  CHECK(events[0].payload == "1");
  CHECK(events[1].payload == "2");
  CHECK(events[2] == Kept{"t/a", "3", kBegin + 20});
}

TEST_CASE("a file that was cut off anywhere is read up to its last whole chunk, and recovered to just that") {
  TempFolder dir;
  const auto whole = dir.path() / "whole.mcap", cut = dir.path() / "cut.mcap";
  const auto written = write(whole, true);
  const std::string bytes = slurp(whole);
  size_t most = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    INFO("cut to " << size << " of " << bytes.size() << " bytes");
    overwrite(cut, bytes.substr(0, size));
    auto before = Reader::open(cut);
    std::vector<Kept> readable;
    if (before) readable = read(cut);
    REQUIRE(readable.size() % 4 == 0);
    REQUIRE(readable.size() >= most);
    REQUIRE(std::equal(readable.begin(), readable.end(), written.begin()));
    most = readable.size();
    const auto recovered = recover(cut);
    if (most == 0) {
      REQUIRE_FALSE(recovered.ok());
      continue;
    }
    REQUIRE(recovered.ok());
    REQUIRE(recovered->events == most);
    REQUIRE(read(cut) == readable);
    auto again = recover(cut);
    REQUIRE(again.ok());
    REQUIRE(again->was_finished);
  }
  CHECK(most == written.size());
  // All chunks and the end: byte for byte what finish() writes.
  overwrite(cut, bytes.substr(0, bytes.size() - 1));
  REQUIRE(recover(cut).ok());
  CHECK(slurp(cut) == bytes);
}

TEST_CASE("a file with a damaged byte anywhere is read to its end, and what is read was written") {
  TempFolder dir;
  const auto file = dir.path() / "a.mcap";
  const auto written = write(file, true);
  const std::string bytes = slurp(file);
  for (size_t at = 0; at < bytes.size(); ++at) {
    INFO("byte " << at);
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    overwrite(file, damaged);
    auto reader = Reader::open(file);
    if (!reader) continue;  // its begin
    size_t events = 0;
    while (const auto event = (*reader)->next()) {
      ++events;
      REQUIRE(std::any_of(written.begin(), written.end(),
                          [&](const Kept& kept) { return kept.payload == event->payload; }));
    }
    REQUIRE(events <= written.size());
  }
}

TEST_CASE("a write that fails leaves the file as it was; topics of the lost chunk are known later") {
  TempFolder dir;
  auto writer = FileWriter::create(dir.path() / "a.mcap", kClocks);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->add("t/a", kBegin, kBegin, "1"));
  REQUIRE((*writer)->flush().ok());
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{(*writer)->size_bytes() + 10, before.rlim_max};  // room for a part of the record
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  REQUIRE((*writer)->add("t/b", kBegin + 1, kBegin + 1, "2"));
  const auto failed = (*writer)->flush();
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK_FALSE(failed.ok());
  CHECK(read(dir.path()).size() == 1);
  REQUIRE((*writer)->add("t/b", kBegin + 2, kBegin + 2, "3"));
  REQUIRE((*writer)->finish().ok());
  const auto events = read(dir.path());
  REQUIRE(events.size() == 2);
  CHECK(events[1] == Kept{"t/b", "3", kBegin + 2});
}

TEST_CASE("what is no recording is one line") {
  TempFolder dir;
  CHECK(Reader::open(dir.path() / "none.mcap").error().code == Code::kNotFound);
  overwrite(dir.path() / "text.mcap", "hello");
  CHECK(Reader::open(dir.path() / "text.mcap").error().code == Code::kInvalidArgument);
  CHECK(Reader::open("/dev/null").error().code == Code::kInvalidArgument);
  CHECK(FileWriter::create(dir.path() / "text.mcap", kClocks).error().code == Code::kAlreadyExists);
  auto writer = FileWriter::create(dir.path() / "many.mcap", kClocks);
  REQUIRE(writer.ok());
  for (size_t i = 0; i < FileWriter::kMaxTopics; ++i) REQUIRE((*writer)->add("t/" + std::to_string(i), 1, 1, ""));
  CHECK_FALSE((*writer)->add("t/more", 1, 1, ""));
}

}  // namespace freeride::recorder
