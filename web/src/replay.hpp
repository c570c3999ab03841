// Tells a recording to a Live, as if it happened now.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>

#include "freeride/base/result.hpp"
#include "freeride/recorder/reader.hpp"
#include "live.hpp"

namespace freeride::web {

/// Time in it passes while a page is open, and stretches of 10 s and more without any event are left out. Owned by one
/// thread; now_ns() by any.
class Replay {
 public:
  /// `recording`: a file, or a folder of them. It begins `skip_s` seconds after their begin; `speed` seconds pass in
  /// one. Reads what held at that moment; blocks on the disk. Errors: Reader::open()'s; kNotFound (nothing happened
  /// after that moment).
  static Result<std::unique_ptr<Replay>> open(const std::filesystem::path& recording, double speed, double skip_s,
                                              Live& live);
  /// Until `end_fd` is readable. Blocks on the disk.
  void run(int end_fd);
  /// Nanoseconds since 1970, in the recording.
  int64_t now_ns() const { return now_ns_; }

 private:
  Replay(std::unique_ptr<recorder::Reader> reader, double speed, Live& live)
      : reader_(std::move(reader)), speed_(speed), live_(live) {}
  bool tell();

  std::unique_ptr<recorder::Reader> reader_;
  const double speed_;
  Live& live_;
  std::optional<recorder::Recorded> next_;
  std::atomic<int64_t> now_ns_{0};
  bool ended_ = false;
};

}  // namespace freeride::web
