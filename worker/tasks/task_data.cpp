#include "tasks/task_data.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "freeride/base/fd.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::worker {
namespace {

constexpr size_t kPieceBytes = 1u << 20;
constexpr size_t kMostEntries = 512;
constexpr size_t kLogPieceBytes = 128u << 10;
constexpr uint64_t kTailBytes = 16u << 10;

Fd open_below(int folder, const std::string& path, uint64_t flags) {
  open_how how{};
  how.flags = flags | O_CLOEXEC | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK | O_NOCTTY);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  return Fd(static_cast<int>(syscall(SYS_openat2, folder, path.empty() ? "." : path.c_str(), &how, sizeof how)));
}

std::string kind_of(mode_t mode) {
  return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "folder" : "other";
}

Result<FilePiece> read_bytes(int fd, const struct stat& info, uint64_t offset) {
  FilePiece piece;
  piece.reply.kind = "file";
  piece.reply.bytes = static_cast<uint64_t>(info.st_size);
  piece.reply.executable = (info.st_mode & S_IXUSR) != 0;
  piece.bytes.resize(kPieceBytes);
  const ssize_t got = offset > INT64_MAX ? 0 : pread(fd, piece.bytes.data(), kPieceBytes, static_cast<off_t>(offset));
  if (got < 0) return errno_error("cannot read the file", errno);
  piece.bytes.resize(static_cast<size_t>(got));
  piece.reply.more = piece.bytes.size() == kPieceBytes;
  piece.reply.next = offset + piece.bytes.size();
  return piece;
}

Result<FilePiece> read_entries(Fd folder, uint64_t offset) {
  FilePiece piece;
  piece.reply.kind = "folder";
  const int fd = folder.get();
  DIR* list = fdopendir(fd);
  if (list == nullptr) return errno_error("cannot list the folder", errno);
  (void)folder.release();  // the list's now
  if (offset != 0) seekdir(list, static_cast<long>(offset));
  for (const dirent* entry = nullptr; (entry = readdir(list)) != nullptr;) {
    const std::string name = entry->d_name;
    piece.reply.next = static_cast<uint64_t>(telldir(list));
    struct stat info {};
    if (name == "." || name == ".." || fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    // A name that cannot travel as text is nothing that could be asked for.
    const bool text = is_utf8(name);
    piece.reply.entries.push_back({text ? name : clean_utf8(name), text ? kind_of(info.st_mode) : "other",
                                   static_cast<uint64_t>(std::max<off_t>(0, info.st_size))});
    if (piece.reply.entries.size() >= kMostEntries) {
      piece.reply.more = true;
      break;
    }
  }
  closedir(list);
  return piece;
}

uint64_t size_of(const std::filesystem::path& file) {
  struct stat info {};
  return lstat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
}

void append(const std::filesystem::path& file, uint64_t offset, size_t most, std::string& text) {
  const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid() || text.size() >= most) return;
  std::string bytes(most - text.size(), '\0');
  const ssize_t got = pread(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
  text.append(bytes, 0, got > 0 ? static_cast<size_t>(got) : 0);
}

// Bytes at the end of `text` that begin a character which is not all there.
size_t begun(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (is_utf8_continuation(text[text.size() - back])) continue;
    const size_t whole = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return whole > back ? back : 0;
  }
  return 0;
}

}  // namespace

Result<FilePiece> read_piece(int folder, const std::string& path, uint64_t offset) {
  if (path.find('\0') != std::string::npos || path.size() > 4096)
    return Error{Code::kInvalidArgument, "that is no path", ""};
  // First what it is: opening a pipe or a device could do something.
  const Fd look = open_below(folder, path, O_PATH);
  struct stat info {};
  if (!look.valid() || fstat(look.get(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return Error{Code::kNotFound, in_quotes(path) + " is not in the task's scratch folder", "see what is: cp TASK:"};
    return Error{Code::kPermission, in_quotes(path) + " is a link, or leads out of the task's scratch folder", ""};
  }
  const std::string kind = kind_of(info.st_mode);
  if (kind == "other") return Error{Code::kPermission, in_quotes(path) + " is neither file nor folder", ""};
  Fd fd = open_below(folder, path, kind == "folder" ? O_RDONLY | O_DIRECTORY : O_RDONLY);
  if (!fd.valid()) return errno_error("cannot open " + in_quotes(path), errno);
  if (fstat(fd.get(), &info) != 0 || kind_of(info.st_mode) != kind)
    return Error{Code::kUnavailable, in_quotes(path) + " is being changed", "try again"};
  if (kind == "folder") return read_entries(std::move(fd), offset);
  return read_bytes(fd.get(), info, offset);
}

Result<bus::LogReply> read_log_piece(const std::filesystem::path& older, const std::filesystem::path& newer,
                                     uint64_t dropped_bytes, int64_t offset) {
  const uint64_t first = size_of(older), second = size_of(newer);
  std::error_code error;
  if (!std::filesystem::exists(newer, error)) return Error{Code::kNotFound, "there is no such log", ""};
  const uint64_t end = dropped_bytes + first + second;
  uint64_t from = offset < 0 ? end - std::min(end - dropped_bytes, kTailBytes) : static_cast<uint64_t>(offset);
  if (from < dropped_bytes || from > end) from = dropped_bytes;
  bus::LogReply reply;
  std::string text;
  if (from < dropped_bytes + first) append(older, from - dropped_bytes, kLogPieceBytes, text);
  if (from + text.size() >= dropped_bytes + first)
    append(newer, from + text.size() - dropped_bytes - first, kLogPieceBytes, text);
  const size_t left = text.size() > 3 ? begun(text) : 0;
  text.resize(text.size() - left);
  reply.next = static_cast<int64_t>(from + text.size());
  // The last lines begin with a whole one.
  if (offset < 0 && from > dropped_bytes) {
    if (const size_t line = text.find('\n'); line != std::string::npos) text.erase(0, line + 1);
  }
  reply.text = clean_utf8(text);
  return reply;
}

}  // namespace freeride::worker
