#include "freeride/base/copy_tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "freeride/base/fd.hpp"

namespace freeride {
namespace {

struct Copy {
  CopyLimits limits;
  Copied done;

  Status folder(int from, int to, int depth);
  Status file(int from, int to, int64_t size, const char* name);
};

Status range(int from, int to, int64_t begin, int64_t end, const char* name) {
  std::array<char, 1 << 16> buffer;
  while (begin < end) {
    const auto want = static_cast<size_t>(std::min<int64_t>(end - begin, static_cast<int64_t>(buffer.size())));
    const ssize_t got = pread(from, buffer.data(), want, begin);
    if (got < 0) return errno_error(std::string("cannot read ") + name, errno);
    if (got == 0) return {};  // became shorter
    for (ssize_t at = 0; at < got;) {
      const ssize_t put = pwrite(to, buffer.data() + at, static_cast<size_t>(got - at), begin + at);
      if (put < 0) return errno_error(std::string("cannot write ") + name, errno);
      at += put;
    }
    begin += got;
  }
  return {};
}

Status Copy::file(int from, int to, int64_t size, const char* name) {
  if (ftruncate(to, size) != 0) return errno_error(std::string("cannot size ") + name, errno);
  for (int64_t at = 0; at < size;) {
    const off_t data = lseek(from, at, SEEK_DATA);
    if (data < 0) break;  // a hole until the end
    const off_t hole = lseek(from, data, SEEK_HOLE);
    const int64_t end = std::min<int64_t>(hole < 0 ? size : hole, size);
    if (end <= data) break;
    if (done.bytes + (end - data) > limits.bytes) {
      ++done.skipped;
      return {};
    }
    if (auto s = range(from, to, data, end, name); !s.ok()) return s;
    done.bytes += end - data;
    at = end;
  }
  return {};
}

Status Copy::folder(int from, int to, int depth) {
  // A descriptor of its own: the caller's position stays.
  const int again = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (again < 0) return errno_error("cannot open a folder", errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(again), closedir);
  if (stream == nullptr) {
    const int error = errno;
    close(again);
    return errno_error("cannot read a folder", error);
  }
  while (const dirent* entry = readdir(stream.get())) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    const char* name = entry->d_name;
    if (std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0) continue;
    struct stat info {};
    if (fstatat(from, name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;  // gone
    const bool is_folder = S_ISDIR(info.st_mode);
    // Else the rest is not even looked at: there may be millions.
    if (++done.entries > limits.entries || done.bytes > limits.bytes - kEntryBytes) {
      ++done.skipped;
      return {};
    }
    done.bytes += kEntryBytes;
    if ((!is_folder && !S_ISREG(info.st_mode)) || (is_folder && depth <= 0) ||
        (!is_folder && info.st_size > limits.bytes)) {
      ++done.skipped;
      continue;
    }
    const Fd in(openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (is_folder ? O_DIRECTORY : 0)));
    // Without its owner's leave (mode 000), or changed under us into something else.
    if (!in.valid() || fstat(in.get(), &info) != 0 || S_ISDIR(info.st_mode) != is_folder ||
        (!is_folder && !S_ISREG(info.st_mode))) {
      ++done.skipped;
      continue;
    }
    if (is_folder) {
      if (mkdirat(to, name, 0700) != 0 && errno != EEXIST)
        return errno_error(std::string("cannot make folder ") + name, errno);
      const Fd out(openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!out.valid()) return errno_error(std::string("cannot open folder ") + name, errno);
      fchmod(out.get(), 0755);
      if (auto s = folder(in.get(), out.get(), depth - 1); !s.ok()) return s;
      continue;
    }
    const Fd out(openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!out.valid() && errno == EEXIST) continue;
    if (!out.valid()) return errno_error(std::string("cannot make ") + name, errno);
    if (auto s = file(in.get(), out.get(), info.st_size, name); !s.ok()) return s;
    fchmod(out.get(), 0644);
  }
  return {};
}

}  // namespace

Result<Copied> copy_tree(int from_folder, int to_folder, const CopyLimits& limits) {
  Copy copy{limits, {}};
  if (auto s = copy.folder(from_folder, to_folder, limits.depth); !s.ok()) return s.error();
  return copy.done;
}

}  // namespace freeride
