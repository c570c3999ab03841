// Reading recordings: events in order of time, from one file or a folder of them. A file may be damaged, or be written
// to at this moment: what is whole of it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/recorder/file.hpp"

namespace freeride::recorder {

/// An event as it was recorded. The views hold until the reader's next call.
struct Recorded {
  std::string_view topic;               ///< "bubble.end/gpt/3"
  std::string_view payload;             ///< as on the bus: bus::decode() takes it
  int64_t time_ns = 0;                  ///< since 1970; never decreases within a file
  int64_t published_ns = 0;             ///< since 1970; far before time_ns: a state that is repeated at a file's begin
  int64_t wall_minus_monotonic_ns = 0;  ///< add this to a CLOCK_MONOTONIC time of the payload

  /// Whether the topic is "<name>/…".
  bool is(std::string_view name) const {
    return topic.size() > name.size() && topic.substr(0, name.size()) == name && topic[name.size()] == '/';
  }
  /// A state that held already, told again so that a file can be read alone.
  bool is_repeated() const { return time_ns - published_ns > kRepeatedAfterNs; }
  static constexpr int64_t kRepeatedAfterNs = 10'000'000'000;
};

/// What a file has, from its heads alone.
struct FileInfo {
  std::filesystem::path file;
  Clocks clocks;
  int64_t begin_ns = 0, end_ns = 0;  ///< since 1970, of its events; 0: it has none
  uint64_t size_bytes = 0, chunks = 0;
  bool finished = false;  ///< else it is being written, or was left by a crash
};

struct Range {
  int64_t from_ns = std::numeric_limits<int64_t>::min();  ///< since 1970, included
  int64_t to_ns = std::numeric_limits<int64_t>::max();    ///< included
  std::vector<std::string> topics{};                      ///< beginnings of topics; empty: all
  /// Also rare events (all but bubbles, iterations and progress) of before: from the start of the file in which from_ns
  /// lies, or of the last file before it.
  bool states_before = false;
};

/// Holds one chunk in memory (64 MiB at most), and some hundred bytes for each chunk of one file. One thread.
class Reader {
 public:
  /// `path`: a file, or a folder with `*.mcap`, which are read in the order of their names. Blocks on the disk. Errors:
  /// kNotFound, kPermission, kInvalidArgument (a file that is no recording).
  static Result<std::unique_ptr<Reader>> open(const std::filesystem::path& path, Range range = {});
  ~Reader();

  /// The next event; nothing at the end.
  std::optional<Recorded> next();

  const std::vector<FileInfo>& files() const;  ///< all of the folder, whatever the range
  uint64_t damaged()
      const;  ///< chunks so far that were not whole, or have events of no known topic; these are left out

 private:
  Reader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace freeride::recorder
