#include "tasks/task_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::worker {
namespace {

constexpr size_t kLongestLine = 1024;  // a longer one is cut rather than left out

Fd open_log(const std::filesystem::path& path) {
  return Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640));
}

}  // namespace

TaskLog::TaskLog(Fd pipe, std::filesystem::path file) : pipe_(std::move(pipe)), path_(std::move(file)) {
  fcntl(pipe_.get(), F_SETFL, fcntl(pipe_.get(), F_GETFL) | O_NONBLOCK);
  if (path_.empty()) return;
  file_ = open_log(path_);
  const off_t end = file_.valid() ? lseek(file_.get(), 0, SEEK_END) : 0;
  file_bytes_ = end > 0 ? static_cast<size_t>(end) : 0;
}

bool TaskLog::read(int64_t now_ns) {
  if (!pipe_.valid()) return false;
  static thread_local std::array<char, 65536> buffer;
  if (now_ns - second_begin_ns_ >= kNsPerSec) {
    if (dropped_ > 0) {
      const std::string note = "[" + std::to_string(dropped_) + " bytes of output dropped: more than " +
                               std::to_string(kBytesPerSecond >> 10) + " KiB/s]\n";
      dropped_ = 0;
      take(note.data(), note.size());
    }
    second_begin_ns_ = now_ns;
    second_bytes_ = 0;
  }
  for (size_t total = 0; total < kReadAtOnce;) {
    const ssize_t got = ::read(pipe_.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    const auto count = static_cast<size_t>(got);
    total += count;
    const size_t room = kBytesPerSecond - std::min(kBytesPerSecond, second_bytes_);
    const size_t kept = std::min(room, count);
    second_bytes_ += kept;
    dropped_ += count - kept;
    take(buffer.data(), kept);
  }
  return true;
}

void TaskLog::take(const char* bytes, size_t count) {
  if (count == 0) return;
  tail_.append(bytes, count);
  if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  to_file(bytes, count);
}

void TaskLog::to_file(const char* bytes, size_t count) {
  if (!file_.valid()) return;
  if (file_bytes_ + count > kFileBytes) {
    std::error_code ignored;
    std::filesystem::rename(path_, path_.string() + ".1", ignored);
    forgotten_ += std::exchange(older_bytes_, file_bytes_);
    file_ = open_log(path_);
    file_bytes_ = 0;
    if (!file_.valid()) return;
  }
  const ssize_t written = write(file_.get(), bytes, count);
  if (written > 0) file_bytes_ += static_cast<size_t>(written);
}

void TaskLog::note(const std::string& line) {
  const std::string text = "freeride: " + line + "\n";
  take(text.data(), text.size());
}

std::string TaskLog::tail(size_t bytes) const {
  size_t begin = tail_.size() - std::min(bytes, tail_.size());
  if (begin > 0) {
    const size_t line = tail_.find('\n', begin - 1);
    if (line != std::string::npos && line - begin < kLongestLine && line + 1 < tail_.size()) begin = line + 1;
  }
  std::string text;
  const std::string_view all(tail_);
  for (size_t at = begin; at < all.size();) {
    const size_t length = utf8_length(all.substr(at));
    if (length == 0 || tail_[at] == '\0') {
      text += '?';
      ++at;
      continue;
    }
    text.append(tail_, at, length);
    at += length;
  }
  return text;
}

}  // namespace freeride::worker
