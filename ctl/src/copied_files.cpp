#include "copied_files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "freeride/base/files.hpp"
#include "interrupt.hpp"

namespace freeride::ctl {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 64;
constexpr size_t kPiece = 1u << 20;

struct CloseFolder {
  void operator()(DIR* folder) const { closedir(folder); }
};

Status copy_file(int from, bool executable, const fs::path& to, Copied& done) {
  auto part = PartFile::make(to, executable);
  if (!part) return part.error();
  std::string bytes(kPiece, '\0');
  for (;;) {
    if (interrupted()) return Error{Code::kUnavailable, "interrupted", ""};
    const ssize_t got = read(from, bytes.data(), kPiece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error("cannot read what belongs to " + to.string(), errno);
    if (got == 0) break;
    if (auto s = part->write(bytes.substr(0, static_cast<size_t>(got))); !s) return s;
    done.bytes += static_cast<uint64_t>(got);
  }
  if (auto s = part->finish(); !s) return s;
  ++done.files;
  return {};
}

Status copy_opened(Fd from, const fs::path& to, int depth, Copied& done) {
  if (interrupted()) return Error{Code::kUnavailable, "interrupted", ""};
  struct stat info {};
  if (fstat(from.get(), &info) != 0) return errno_error("cannot look at " + to.string(), errno);
  if (S_ISREG(info.st_mode)) return copy_file(from.get(), (info.st_mode & S_IXUSR) != 0, to, done);
  if (!S_ISDIR(info.st_mode)) {
    ++done.skipped;
    return {};
  }
  if (depth > kDeepest) return Error{Code::kInvalidArgument, to.string() + " is too deep to be copied", ""};
  if (auto made = make_folder(to); !made) return made;
  const int number = from.get();
  const std::unique_ptr<DIR, CloseFolder> folder(fdopendir(from.release()));
  if (folder == nullptr) return errno_error("cannot list what belongs to " + to.string(), errno);
  while (const dirent* entry = readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    // Without waiting for who writes into a pipe; a link is none of the kinds that are taken.
    Fd inner(openat(number, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!inner.valid() && (errno == ELOOP || errno == ENOENT || errno == ENXIO)) {
      ++done.skipped;
      continue;
    }
    if (!inner.valid()) return errno_error("cannot read what belongs to " + (to / name).string(), errno);
    if (auto s = copy_opened(std::move(inner), to / name, depth + 1, done); !s) return s;
  }
  return {};
}

}  // namespace

Status make_folder(const fs::path& folder) {
  if (mkdir(folder.c_str(), 0777) == 0) return {};
  struct stat info {};
  if (errno == EEXIST && lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return {};
  return errno_error("cannot make the folder " + folder.string(), errno == EEXIST ? ENOTDIR : errno);
}

Result<PartFile> PartFile::make(const fs::path& to, bool executable) {
  const fs::path part = to.string() + ".part-" + std::to_string(getpid());
  unlink(part.c_str());
  Fd file(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, executable ? 0777 : 0666));
  if (!file.valid()) return errno_error("cannot write " + part.string(), errno);
  return PartFile(to, part, std::move(file));
}

PartFile::~PartFile() {
  if (file_.valid()) unlink(part_.c_str());
}

Status PartFile::write(const std::string& bytes) {
  if (!write_all(file_.get(), bytes)) return errno_error("cannot write " + part_.string(), errno);
  return {};
}

Status PartFile::finish() {
  if (rename(part_.c_str(), to_.c_str()) != 0) return errno_error("cannot make " + to_.string(), errno);
  file_.reset();
  return {};
}

Result<Copied> copy_below(const std::string& granted, const std::string& rest, const fs::path& to) {
  const std::string shown = rest == "." ? granted : granted + "/" + rest;
  // What the user has named may be reached over links of the user's; what lies below is the task's.
  Fd from(open(granted.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (from.valid() && rest != ".") {
    open_how how{};
    how.flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    from = Fd(static_cast<int>(syscall(SYS_openat2, from.get(), rest.c_str(), &how, sizeof(how))));
  }
  if (!from.valid() && (errno == ELOOP || errno == EXDEV))
    return Error{Code::kPermission, shown + " is reached over a link that the task may have made", "name its target"};
  if (!from.valid()) return errno_error("cannot read " + shown, errno);
  Copied done;
  if (auto s = copy_opened(std::move(from), to, 0, done); !s) return s.error();
  return done;
}

}  // namespace freeride::ctl
