// TaskLog: what a side task prints, bounded in every direction.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "freeride/base/fd.hpp"

namespace freeride::worker {

/// Reads a pipe, keeps the tail, and appends to a file. A flood is read and dropped, so that it neither blocks its
/// writer nor fills the disk. Main thread; never blocks on the pipe.
class TaskLog {
 public:
  static constexpr size_t kTailBytes = 64u << 10;
  static constexpr size_t kFileBytes = 4u << 20;  // then the file begins anew; the one before is kept as <file>.1
  static constexpr size_t kBytesPerSecond = 256u << 10;
  static constexpr size_t kReadAtOnce = 1u << 20;

  /// `file` may be empty: no file. A file that cannot be written is done without.
  TaskLog(Fd pipe, std::filesystem::path file);

  int fd() const { return pipe_.get(); }
  /// Takes what is there, at most kReadAtOnce. False: the last writer is gone.
  bool read(int64_t now_ns);
  /// A line of the worker's own, without its end.
  void note(const std::string& line);
  /// Its last lines can still be asked for.
  void close() {
    pipe_.reset();
    file_.reset();
  }

  /// The last lines, at most `bytes` and beginning with a whole line where that is possible; valid UTF-8, other bytes
  /// as '?'.
  std::string tail(size_t bytes = kTailBytes) const;
  /// Bytes at the beginning that neither of the two files has any more.
  uint64_t forgotten() const { return forgotten_; }

 private:
  void take(const char* bytes, size_t count);
  void to_file(const char* bytes, size_t count);

  Fd pipe_;
  std::filesystem::path path_;
  Fd file_;
  size_t file_bytes_ = 0, older_bytes_ = 0;
  uint64_t forgotten_ = 0;
  std::string tail_;
  int64_t second_begin_ns_ = 0;
  size_t second_bytes_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace freeride::worker
