// One recording on disk: writing it chunk by chunk, and making a whole file of what a crash has left. README.md has the
// format.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride::recorder {

/// How a file's times were mapped: an event at `monotonic_ns` is at `wall_ns`. Read once per file, so that a step of
/// the wall clock changes no order within.
struct Clocks {
  int64_t wall_ns = 0;       ///< since 1970
  int64_t monotonic_ns = 0;  ///< CLOCK_MONOTONIC of `host`, at the same moment
  std::string boot_id, host;

  static Clocks now();
  int64_t wall_of(int64_t monotonic) const { return wall_ns + (monotonic - monotonic_ns); }
};

/// What becomes of the events of a file.
enum class Layout {
  kColumns,  ///< those that come many times a second are kept together in columns, times to the microsecond
  kEvents,   ///< a message each, as on the bus
  kJson,     ///< a message each, as JSON, which Foxglove shows
};

/// Writes a file. One thread. Only flush() and finish() touch the disk, and may block on it.
class FileWriter {
 public:
  static constexpr size_t kMaxTopics = 8192;              ///< of one file: its channels stay few
  static constexpr size_t kChunkBytes = size_t{1} << 20;  ///< when buffered() is more, it is time to flush()

  /// Makes the file, mode 0640, for `group` to read, with nothing in it but `clocks`. Errors: kAlreadyExists,
  /// kExhausted (disk full), kPermission.
  static Result<std::unique_ptr<FileWriter>> create(const std::filesystem::path& file, const Clocks& clocks,
                                                    std::optional<gid_t> group = std::nullopt,
                                                    Layout layout = Layout::kColumns);
  ~FileWriter();  ///< What is not finish()ed is left as after a crash.

  /// Adds an event to the next chunk. `log_ns` (since 1970) is raised to the end of the last chunk where it is before
  /// it. False: the file has kMaxTopics others.
  bool add(std::string_view topic, int64_t log_ns, int64_t publish_ns, std::string_view payload);
  /// Writes what was added as a chunk. On an error the file is as before, and what was added is gone.
  Status flush();
  /// Forgets what was added since the last flush().
  void drop();
  /// flush(), and the end of the file. Nothing can be added any more.
  Status finish();

  const Clocks& clocks() const;
  const std::filesystem::path& file() const;
  size_t buffered() const;  ///< bytes that wait for flush()
  uint64_t buffered_events() const;
  uint64_t size_bytes() const;  ///< on disk

 private:
  FileWriter();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct Recovered {
  bool was_finished = false;  ///< there was nothing to do
  uint64_t events = 0;        ///< that the file has now
  uint64_t cut_bytes = 0;     ///< after the last whole chunk
};
/// Ends an unfinished file behind its last whole chunk. May be interrupted and done again. Blocks on the disk. Errors:
/// kNotFound, kPermission, kInvalidArgument (no recording, or one without a whole chunk: delete it), kExhausted.
Result<Recovered> recover(const std::filesystem::path& file);

}  // namespace freeride::recorder
