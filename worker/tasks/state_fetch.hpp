// StateFetch: the saved state of a task that was on another host, brought to this one.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "freeride/base/clock.hpp"
#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "loop/loop.hpp"
#include "tasks/state_file.hpp"
#include "tasks/task_data.hpp"

namespace freeride::worker {

/// Asks for a state piece by piece and writes it into the task's folder, where open_state() finds it. What has come
/// stays while the other worker is away, for kPatienceNs at most. Bounded by FREERIDE_STATE_MOST_BYTES. Nothing of it
/// is believed but its header, which must be this instance's. Main thread; blocks for a piece's write.
class StateFetch {
 public:
  static constexpr int64_t kPatienceNs = 30 * kNsPerSec;
  static constexpr int kMostAtOnce = 4;  ///< pieces under way, of all tasks: links between hosts may be slow

  /// Asks for a piece; answers later, once.
  using Ask = std::function<void(const bus::FetchState& wish, std::function<void(Result<FilePiece>)> answer)>;
  struct Request {
    bus::FetchState wish;
    std::string instance;
    std::filesystem::path folder;  ///< of the task, and of this instance
    std::function<bool()> wanted;  ///< whether anybody still waits: nothing more is called where nobody does
    /// Once. Errors: kNotFound: there is none; else why it could not be had. What this host had before is still there.
    /// `here`: the error is this host's, and not what the other one says or does.
    std::function<void(Status, bool here)> done;
  };
  /// `loop` outlives it.
  StateFetch(Loop& loop, Ask ask) : loop_(loop), ask_(std::move(ask)) {}

  void get(Request request);

 private:
  struct Going;
  void next(const std::shared_ptr<Going>& going);
  void take(const std::shared_ptr<Going>& going, Result<FilePiece> piece);
  void take_bytes(const std::shared_ptr<Going>& going, const FilePiece& piece);

  Loop& loop_;
  const Ask ask_;
  int under_way_ = 0;
  std::deque<std::shared_ptr<Going>> waiting_;
};

}  // namespace freeride::worker
