// Journal: a folder of recordings that is bounded, and goes on whatever becomes of the disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/sockets.hpp"
#include "freeride/recorder/file.hpp"
#include "freeride/recorder/reader.hpp"

namespace freeride::recorder {

/// Where recordings are: the folder that is given, else this user's own where it has some, else the host's
/// (/var/lib/freeride/recordings). Any thread.
std::filesystem::path recordings_folder(const std::filesystem::path& given = {});

struct JournalOptions {
  std::filesystem::path folder;
  int64_t keep_ns = 24 * 3600 * kNsPerSec;         ///< files whose end is older are deleted, by clocks that do not step
  uint64_t keep_bytes = uint64_t{1} << 30;         ///< of all files together
  uint64_t keep_free_bytes = uint64_t{256} << 20;  ///< of the disk, for others: with less it pauses
  std::optional<gid_t> group;                      ///< who else may read
  /// Deletes a file: a test's own may fail.
  std::function<bool(const std::filesystem::path&, std::error_code&)> remove = [](const auto& file, auto& problem) {
    return std::filesystem::remove(file, problem);
  };
};

/// One thread. Every call may block on the disk, and on nothing else.
class Journal {
 public:
  static constexpr int64_t kFlushAfterNs = 2 * kNsPerSec;  ///< so long an event waits for the disk at most
  static constexpr int64_t kFileNs = 3600 * kNsPerSec;     ///< of one file
  static constexpr size_t kMaxStates = 4096;               ///< that a file begins with: those that changed last

  /// Ends what a crash has left, and begins a file. A full disk is no error here: it is tried again. Errors:
  /// kAlreadyExists (another recorder has the folder), kPermission, kInvalidArgument.
  static Result<std::unique_ptr<Journal>> open(const JournalOptions& options, const Clock& clock,
                                               std::function<Clocks()> clocks = Clocks::now);
  ~Journal();  ///< Ends the file.

  /// Records an event. One that has come through another host's clock, or is repeated, counts as of now.
  void take(const bus::Event& event);
  /// Records that events are missing, here.
  void note_gap(const bus::RecordingGap& gap);
  /// Writes, begins a new file and deletes old ones, where it is time to. To be called when due_ns() is over, and about
  /// once a minute.
  void tick();
  /// When tick() has something to do next; nothing: not before the next event.
  std::optional<int64_t> due_ns() const;

  bool paused() const { return paused_since_ns_ != 0; }
  uint64_t lost() const { return lost_; }  ///< events that found no room, in all

 private:
  struct State {
    std::string payload;
    int64_t published_ns = 0;  // CLOCK_MONOTONIC
    uint64_t changed = 0;      // a count: the least has been the longest unchanged
  };
  struct Closed {
    int64_t ended_ns = 0;  // by clock_; negative: before this boot
    bool stuck = false;    // it could not be deleted, which has been said
  };
  struct Begin {
    std::string topic, payload;
    int64_t log_ns = 0, publish_ns = 0;
  };

  Journal(JournalOptions options, const Clock& clock, std::function<Clocks()> clocks);
  Status lock();
  std::vector<FileInfo> end_unfinished();
  void date(const std::vector<FileInfo>& before);
  void say_where_it_stopped(const std::vector<FileInfo>& before);
  Status begin_file();
  void add(std::string_view topic, int64_t log_ns, int64_t publish_ns, std::string_view payload);
  void append(std::string_view topic, int64_t log_ns, int64_t publish_ns, std::string_view payload);
  void remember(const bus::Event& event);
  void tell_states();
  void release_begins();
  void flush();
  Status has_room() const;
  void pause(const Error& error, uint64_t lost);
  void go_on();
  void rotate();
  void prune();

  JournalOptions options_;
  const Clock& clock_;
  std::function<Clocks()> clocks_;
  Fd lock_;
  std::unique_ptr<FileWriter> writer_;
  uint64_t next_number_ = 1, others_bytes_ = 0, file_bytes_ = 0;
  int64_t oldest_ns_ = 0, file_begun_ns_ = 0, tried_ns_ = 0,
          pruned_ns_ = 0;  // oldest_ns_: of what waits for the disk; 0: nothing does
  std::map<std::string, State> states_;
  uint64_t changes_ = 0;
  bool forgot_states_ = false;  // there were more than kMaxStates
  std::map<std::filesystem::path, Closed> closed_;
  std::map<std::string, Begin> begins_;  // bubbles whose end has not come, by the rest of the topic
  int64_t paused_since_ns_ = 0;
  uint64_t lost_in_pause_ = 0, lost_ = 0, gaps_ = 0;
};

}  // namespace freeride::recorder
