#include "tasks/state_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "freeride/base/files.hpp"

namespace freeride::worker {
namespace {

constexpr size_t kMostAtOnce = 1u << 20;
constexpr size_t kMostReasonBytes = 2048;
constexpr const char* kHint = "free space in the state folder";

Status write_state(int fd, std::string_view bytes) {
  if (write_all(fd, bytes)) return {};
  return errno_error("cannot write the task's state", errno, kHint);
}

// Whether the file begins with a good header of this instance.
bool read_header(int fd, const std::string& instance, freeride_saved_state& header) {
  return pread(fd, &header, sizeof(header), 0) == static_cast<ssize_t>(sizeof(header)) &&
         is_header_of(header, instance);
}

}  // namespace

StateFile::StateFile(std::filesystem::path folder, std::string instance, Fd fd)
    : folder_(std::move(folder)), instance_(std::move(instance)), fd_(std::move(fd)) {}

StateFile::~StateFile() {
  if (!kept_ && is_there()) unlink(next().c_str());
}

// A later one of the same task may have taken its place.
bool StateFile::is_there() const {
  struct stat named {};
  struct stat ours {};
  return lstat(next().c_str(), &named) == 0 && fstat(fd_.get(), &ours) == 0 && named.st_dev == ours.st_dev &&
         named.st_ino == ours.st_ino;
}

Result<std::unique_ptr<StateFile>> StateFile::create(const std::filesystem::path& folder, const std::string& instance) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path file = folder / "state.next";
  unlink(file.c_str());  // of a worker that was killed; a reader of it may be there still
  Fd fd(open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return errno_error("cannot make " + file.string(), errno, "repair the state folder");
  return std::unique_ptr<StateFile>(new StateFile(folder, instance, std::move(fd)));
}

Result<Fd> StateFile::reader() const {
  Fd fd(open(next().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return errno_error("cannot open " + next().string(), errno, "repair the state folder");
  return fd;
}

Status StateFile::begin(const freeride_saved_state& header) {
  header_ = header;
  std::memset(header_.instance, 0, sizeof(header_.instance));
  std::memcpy(header_.instance, instance_.data(), std::min(instance_.size(), sizeof(header_.instance) - 1));
  if (ftruncate(fd_.get(), 0) != 0 || lseek(fd_.get(), 0, SEEK_SET) != 0) {
    return errno_error("cannot write the task's state", errno, kHint);
  }
  return write_state(fd_.get(), {reinterpret_cast<const char*>(&header_), sizeof(header_)});
}

Status StateFile::append(const char* bytes, size_t count) {
  return write_state(fd_.get(), {bytes, count});
}

Status StateFile::copy_or_none(uint64_t steps) {
  const Fd old = open_state(folder_, instance_);
  freeride_saved_state header{};
  if (!old.valid() || !read_header(old.get(), instance_, header)) {
    header = {};
    header.magic = FREERIDE_STATE_MAGIC;
    header.major = FREERIDE_PAGES_MAJOR;
    header.steps = steps;
    return begin(header);
  }
  if (auto begun = begin(header); !begun.ok()) return begun;
  std::array<char, 65536> buffer{};
  off_t offset = sizeof(header);
  for (;;) {
    const ssize_t got = pread(old.get(), buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error("cannot read the task's state", errno);
    if (got == 0) return {};
    if (auto s = append(buffer.data(), static_cast<size_t>(got)); !s.ok()) return s;
    offset += got;
  }
}

Status StateFile::keep() {
  if (fdatasync(fd_.get()) != 0) return errno_error("cannot write the task's state", errno, kHint);
  if (!is_there()) return Error{Code::kUnavailable, "another state of the task is being written", ""};
  if (rename(next().c_str(), (folder_ / "state").c_str()) != 0) {
    return errno_error("cannot name " + (folder_ / "state").string(), errno);
  }
  kept_ = true;
  return {};
}

bool is_header_of(const freeride_saved_state& header, const std::string& instance) {
  return header.magic == FREERIDE_STATE_MAGIC && header.major == FREERIDE_PAGES_MAJOR &&
         std::string(header.instance, strnlen(header.instance, sizeof(header.instance))) == instance;
}

Fd open_state(const std::filesystem::path& folder, const std::string& instance) {
  if (instance.empty()) return Fd();
  const std::filesystem::path file = folder / "state";
  Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  freeride_saved_state header{};
  if (fd.valid() && !read_header(fd.get(), instance, header)) {
    unlink(file.c_str());
    fd.reset();
  }
  return fd;
}

void forget_state(const std::filesystem::path& folder) {
  unlink((folder / "state").c_str());
}

Result<StateReceiver::Progress> StateReceiver::take_header(uint64_t lease_id, StateFile& file) {
  header_bytes_ = 0;
  if (header_.magic != FREERIDE_STATE_MAGIC || header_.major != FREERIDE_PAGES_MAJOR ||
      header_.size > FREERIDE_STATE_MOST_BYTES) {
    broken_ = true;
    return Error{Code::kInternal, "what the task wrote is no state", ""};
  }
  left_ = header_.size;
  wanted_ = header_.lease_id == lease_id;
  reason_.clear();
  if (wanted_ && header_.status == 0) {
    if (auto begun = file.begin(header_); !begun.ok()) return begun.error();
  }
  return Progress::kMore;
}

Result<StateReceiver::Progress> StateReceiver::receive(int pipe_fd, uint64_t lease_id, StateFile& file) {
  if (broken_) return Error{Code::kInternal, "what the task wrote is no state", ""};
  static thread_local std::array<char, 65536> buffer;
  for (size_t total = 0; total < kMostAtOnce;) {
    const bool in_header = left_ == 0;
    char* into = in_header ? reinterpret_cast<char*>(&header_) + header_bytes_ : buffer.data();
    const size_t most =
        in_header ? sizeof(header_) - header_bytes_ : static_cast<size_t>(std::min<uint64_t>(left_, buffer.size()));
    const ssize_t got = ::read(pipe_fd, into, most);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Progress::kMore;
    if (got <= 0) return Error{Code::kUnavailable, "the task ended while it saved its state", ""};
    const auto count = static_cast<size_t>(got);
    total += count;
    if (in_header) {
      header_bytes_ += count;
      if (header_bytes_ < sizeof(header_)) continue;
      if (auto taken = take_header(lease_id, file); !taken.ok()) return taken;
    } else {
      left_ -= count;
      if (wanted_ && header_.status != 0) {
        reason_.append(buffer.data(), std::min(count, kMostReasonBytes - std::min(kMostReasonBytes, reason_.size())));
      } else if (wanted_) {
        if (auto s = file.append(buffer.data(), count); !s.ok()) {
          broken_ = true;  // the rest of it is not worth reading
          return s.error();
        }
      }
    }
    if (left_ == 0 && wanted_) {
      wanted_ = false;
      if (header_.status == 0) return Progress::kDone;
      return Error{Code::kRejected, reason_.empty() ? "the task gives no reason" : reason_, ""};
    }
  }
  return Progress::kMore;
}

}  // namespace freeride::worker
