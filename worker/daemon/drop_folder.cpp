#include "daemon/drop_folder.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/plugin_file.hpp"

namespace freeride::worker {
namespace {

constexpr int64_t kRetryNs = 5 * kNsPerSec;
constexpr uint32_t kFileEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CREATE;
constexpr uint32_t kFolderEvents = IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED;

// Somebody has it open for writing: a read lease is refused then. Where leases are not possible, the answer is no, and
// the file's own checks decide.
bool is_being_written(int fd) {
  if (fcntl(fd, F_SETLEASE, F_RDLCK) == 0) {
    fcntl(fd, F_SETLEASE, F_UNLCK);
    return false;
  }
  return errno == EAGAIN;
}

}  // namespace

const char* to_string(DroppedFile::State state) {
  switch (state) {
    case DroppedFile::State::kAdded:
      return "added";
    case DroppedFile::State::kReplaced:
      return "replaced";
    case DroppedFile::State::kRejected:
      return "rejected";
    case DroppedFile::State::kRemoved:
      return "removed";
  }
  return "";
}

DropFolder::DropFolder(std::filesystem::path folder, PluginStore& store, Loop& loop, Listener listener)
    : folder_(std::move(folder)), store_(store), loop_(loop), listener_(std::move(listener)) {}

DropFolder::~DropFolder() {
  ends_ = true;
  if (inotify_.valid()) loop_.forget(inotify_.get());
  loop_.cancel(retry_);
}

void DropFolder::start() {
  if (!open_watch()) {
    retry_later();
  } else {
    warned_ = false;
    rescan();
  }
  if (background_ != nullptr) return;
  if (auto made = Background::create(loop_); made.ok()) background_ = std::move(*made);
}

bool DropFolder::open_watch() {
  const auto fail = [&](int err) {
    if (!warned_) {
      spdlog::warn("{}; make the folder readable; it is tried again every {} s, and loading by path works meanwhile",
                   errno_error("cannot watch the drop folder " + folder_.string(), err).message, kRetryNs / kNsPerSec);
    }
    warned_ = true;
    return false;
  };
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  Fd fd(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd.valid()) return fail(errno);
  if (inotify_add_watch(fd.get(), folder_.c_str(), kFileEvents | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR) < 0) {
    return fail(errno);
  }
  // Readable to be notified is not yet readable to be listed.
  if (access(folder_.c_str(), R_OK | X_OK) != 0) return fail(errno);
  if (!loop_.watch(fd.get(), EPOLLIN, [this](uint32_t) { on_readable(); }).ok()) return fail(ENOMEM);
  inotify_ = std::move(fd);
  return true;
}

void DropFolder::retry_later() {
  loop_.cancel(retry_);
  retry_ = loop_.at(SteadyClock::now() + kRetryNs, [this] { start(); });
}

void DropFolder::rescan() {
  std::set<std::string> there;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(folder_, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!is_plugin_file_name(name)) continue;
    there.insert(name);
    take(name);
  }
  if (error) return;
  std::vector<std::string> gone;
  for (const auto& [name, file] : files_) {
    if (there.count(name) == 0 && file.state != DroppedFile::State::kRemoved) gone.push_back(name);
  }
  for (const std::string& name : gone) remove(name);
}

void DropFolder::on_readable() {
  alignas(inotify_event) std::array<char, 16384> buffer;
  const ssize_t got = read(inotify_.get(), buffer.data(), buffer.size());
  if (got <= 0) return;
  bool lost_events = false;
  bool lost_folder = false;
  std::map<std::string, uint32_t> last;  // what happened to a file last is what counts
  for (ssize_t at = 0; at + static_cast<ssize_t>(sizeof(inotify_event)) <= got;) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    at += static_cast<ssize_t>(sizeof(inotify_event)) + event->len;
    if ((event->mask & IN_Q_OVERFLOW) != 0) lost_events = true;
    if ((event->mask & kFolderEvents) != 0) lost_folder = true;
    if (event->len == 0) continue;
    const std::string name(event->name);
    if (!is_plugin_file_name(name)) continue;
    // A created file is empty or being written, and its close is told apart; a link is whole at once.
    if ((event->mask & IN_CREATE) != 0 && !std::filesystem::is_symlink(folder_ / name)) continue;
    last[name] = event->mask;
  }
  for (const auto& [name, mask] : last) {
    if ((mask & (IN_DELETE | IN_MOVED_FROM)) != 0) {
      remove(name);
    } else {
      take(name);
    }
  }
  if (lost_events) rescan();
  if (lost_folder) {
    loop_.forget(inotify_.get());
    inotify_.reset();
    start();
  }
}

void DropFolder::take(const std::string& name) {
  if (background_ != nullptr) {
    waiting_.insert(name);
    return look_at_next();
  }
  if (auto file = look(folder_ / name, store_, ends_)) keep(std::move(*file));
}

void DropFolder::look_at_next() {
  if (!looking_at_.empty() || waiting_.empty()) return;
  looking_at_ = waiting_.extract(waiting_.begin()).value();
  gone_meanwhile_ = false;
  auto looked = std::make_shared<std::optional<DroppedFile>>();
  background_->run([this, looked, path = folder_ / looking_at_] { *looked = look(path, store_, ends_); },
                   [this, looked] {
                     looking_at_.clear();
                     if (*looked && !gone_meanwhile_) keep(std::move(**looked));
                     look_at_next();
                   });
}

std::optional<DroppedFile> DropFolder::look(const std::filesystem::path& path, PluginStore& store,
                                            const std::atomic<bool>& ends) {
  // Non-blocking: somebody may drop a pipe.
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  DroppedFile file;
  file.name = path.filename().string();
  file.state = DroppedFile::State::kRejected;
  if (!fd.valid()) {
    if (errno == ENOENT) return std::nullopt;
    file.reason = errno_error("cannot open " + path.string(), errno, "make it readable for the worker").text();
    return file;
  }
  if (is_being_written(fd.get())) return std::nullopt;
  auto bytes = read_file(fd.get(), path.string(), kMaxPluginBytes);
  if (ends) return std::nullopt;
  auto sha256 = bytes.ok() ? store.put(*bytes, file.name, &ends) : bytes;
  if (!sha256.ok()) {
    file.reason = sha256.error().text();
    return file;
  }
  file.size_bytes = bytes->size();
  file.sha256 = *sha256;
  file.state = DroppedFile::State::kAdded;
  return file;
}

void DropFolder::keep(DroppedFile file) {
  if (file.state != DroppedFile::State::kAdded) return set(std::move(file));
  const auto known = files_.find(file.name);
  const bool replaces = known != files_.end() && (known->second.state == DroppedFile::State::kAdded ||
                                                  known->second.state == DroppedFile::State::kReplaced);
  if (replaces && known->second.sha256 == file.sha256) return;
  if (replaces) file.state = DroppedFile::State::kReplaced;
  set(std::move(file));
}

std::vector<std::filesystem::path> DropFolder::files_of(const std::string& sha256) const {
  std::vector<std::filesystem::path> files;
  for (const auto& [name, known] : files_) {
    if (known.sha256 == sha256) files.push_back(folder_ / name);
  }
  return files;
}

bool DropFolder::restore(const std::vector<std::filesystem::path>& files, const std::string& sha256,
                         PluginStore& store) {
  for (const auto& file : files) {
    const Fd fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!fd.valid()) continue;
    auto bytes = read_file(fd.get(), file.string(), kMaxPluginBytes);
    if (!bytes.ok()) continue;
    const auto put = store.put(*bytes, file.filename().string());
    if (put.ok() && *put == sha256) return true;
  }
  return false;
}

void DropFolder::remove(const std::string& name) {
  waiting_.erase(name);
  if (name == looking_at_) gone_meanwhile_ = true;
  const auto it = files_.find(name);
  if (it == files_.end()) return;
  DroppedFile file = it->second;
  file.state = DroppedFile::State::kRemoved;
  file.reason.clear();
  files_.erase(it);
  listener_(file);
}

void DropFolder::set(DroppedFile file) {
  const auto it = files_.find(file.name);
  if (it == files_.end() && files_.size() >= kMostFiles) {
    spdlog::warn("the drop folder {} holds more than {} plugins; {} is left out", folder_.string(), kMostFiles,
                 file.name);
    return;
  }
  if (it != files_.end() && it->second.state == file.state && it->second.sha256 == file.sha256 &&
      it->second.reason == file.reason) {
    return;
  }
  files_[file.name] = file;
  listener_(file);
}

}  // namespace freeride::worker
