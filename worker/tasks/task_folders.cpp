#include "tasks/task_folders.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "freeride/base/clock.hpp"
#include "freeride/base/copy_tree.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/names.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEveryNs = 3600 * kNsPerSec;  // for what only time makes old
constexpr int64_t kLeastPauseNs = 2 * kNsPerSec;
constexpr int64_t kShare = 20;  // of all time, the part that is spent on looking and removing at most
constexpr size_t kMostAtOnce = 256;
constexpr const char* kEnded = "ended";
constexpr const char* kEpoch = "epoch";
constexpr const char* kInstance = "instance";
constexpr char kAside = '~';                     // in no task's name
constexpr const char* kRemoving = ".removing-";  // no task's name begins with a dot
constexpr int kTries = 50;
constexpr timespec kBetweenTries{0, 2'000'000};

Fd open_folder(const fs::path& folder) {
  return Fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Nobody holds it; whoever comes now has to wait. Where folders cannot be locked, everything is held.
Fd take_folder(const fs::path& folder) {
  Fd fd = open_folder(folder);
  return fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(fd) : Fd();
}

int64_t disk_bytes(const fs::path& folder, const std::atomic<bool>& ends) {
  // A folder or file of nothing takes room, too: an inode.
  const auto room = [](const fs::path& path) {
    struct stat info {};
    return lstat(path.c_str(), &info) == 0 ? std::max(static_cast<int64_t>(info.st_blocks) * 512, kEntryBytes) : 0;
  };
  int64_t bytes = room(folder);
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied, error);
       !error && it != fs::recursive_directory_iterator() && !ends; it.increment(error)) {
    bytes += room(it->path());
  }
  return bytes;
}

// As remove_all(), but can be ended in between.
std::error_code remove_tree(const fs::path& path, const std::atomic<bool>& ends) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    for (auto it = fs::directory_iterator(path, error); !error && it != fs::directory_iterator(); it.increment(error)) {
      if (ends) return std::make_error_code(std::errc::interrupted);
      if (const auto failed = remove_tree(it->path(), ends)) return failed;
    }
  }
  if (!error) fs::remove(path, error);
  return error;
}

std::string mib(int64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

Result<Fd> hold_task_folder(const fs::path& folder) {
  for (int tries = 0; tries < kTries; ++tries) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
      return errno_error("cannot make the task's folder " + folder.string(), error.value(), "repair the state folder");
    Fd fd = open_folder(folder);
    if (fd.valid()) {
      // Where folders cannot be locked nobody removes any, either.
      if (flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno != EWOULDBLOCK) return fd;
      struct stat held {
      }, named{};
      const bool same = fstat(fd.get(), &held) == 0 && stat(folder.c_str(), &named) == 0 &&
                        held.st_ino == named.st_ino && held.st_dev == named.st_dev;
      if (same && flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
        futimens(fd.get(), nullptr);  // used now
        return fd;
      }
    }
    nanosleep(&kBetweenTries, nullptr);
  }
  return Error{Code::kUnavailable, "the task's folder " + folder.string() + " is being removed", "load the task again"};
}

void note_epoch(int folder_fd, uint64_t epoch) {
  const Fd file(openat(folder_fd, kEpoch, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid() || !write_all(file.get(), std::to_string(epoch)))
    spdlog::warn("{}", errno_error("cannot note a task's epoch in its folder", errno).text());
}

uint64_t noted_epoch(int folder_fd) {
  const Fd file(openat(folder_fd, kEpoch, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  std::array<char, 24> text{};
  if (!file.valid() || read(file.get(), text.data(), text.size() - 1) <= 0) return 0;
  return std::strtoull(text.data(), nullptr, 10);
}

namespace {

std::string noted_instance(const fs::path& folder) {
  const Fd fd = open_folder(folder);
  if (!fd.valid()) return {};
  const Fd file(openat(fd.get(), kInstance, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  std::array<char, 256> text{};
  const ssize_t got = file.valid() ? read(file.get(), text.data(), text.size()) : 0;
  return std::string(text.data(), got > 0 ? static_cast<size_t>(got) : 0);
}

fs::path aside(const fs::path& folder, const std::string& instance) {
  std::string name = folder.filename().string() + kAside;
  for (const char c : instance.substr(0, 128)) name += is_task_name_char(c) ? c : '-';
  return folder.parent_path() / name;
}

}  // namespace

Status claim_folder(const fs::path& folder, const std::string& instance) {
  const std::string there = noted_instance(folder);
  // One that an earlier version has made says nothing; it is its task's as long as that has not ended.
  const bool others = there.empty() ? is_marked_ended(folder) : there != instance;
  if (others) {
    mark_ended(folder);  // the name was free again
    const fs::path to = aside(folder, there.empty() ? "earlier" : there);
    std::error_code error;
    fs::remove_all(to, error);
    fs::rename(folder, to, error);
    if (error) {
      return errno_error("cannot put aside what an earlier task of the name has left in " + folder.string(),
                         error.value(), "repair the state folder");
    }
  }
  if (there == instance && !others) return {};
  std::error_code error;
  fs::create_directories(folder, error);
  const Fd file(open((folder / kInstance).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid() || !write_all(file.get(), instance))
    return errno_error("cannot note whose the task's folder " + folder.string() + " is", errno,
                       "repair the state folder");
  return {};
}

fs::path folder_of_instance(const fs::path& folder, const std::string& instance) {
  for (const fs::path& one : {folder, aside(folder, instance)}) {
    if (noted_instance(one) == instance) return one;
  }
  return {};
}

void begin_log(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder / "log", ignored)) return;
  fs::remove(folder / "log.previous.1", ignored);
  fs::rename(folder / "log.1", folder / "log.previous.1", ignored);
  fs::rename(folder / "log", folder / "log.previous", ignored);
}

void mark_ended(const fs::path& folder) {
  const Fd mark(open((folder / kEnded).c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
}
bool is_marked_ended(const fs::path& folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(folder / kEnded, error));
}
void unmark_ended(const fs::path& folder) {
  std::error_code error;
  fs::remove(folder / kEnded, error);
}

Result<std::unique_ptr<TaskFolders>> TaskFolders::create(fs::path root, const policy::KeepLimits& limits, Loop& loop,
                                                         Ask ask) {
  std::unique_ptr<TaskFolders> made(new TaskFolders(std::move(root), limits, loop, std::move(ask)));
  auto background = Background::create(loop);
  if (!background.ok()) return background.error();
  made->background_ = std::move(*background);
  made->schedule(SteadyClock::now() + kLeastPauseNs);
  return made;
}

TaskFolders::~TaskFolders() {
  ends_ = true;
  background_.reset();
  loop_.cancel(timer_);
}

void TaskFolders::look_soon() {
  if (busy_) {
    again_ = true;
    return;
  }
  schedule(std::max(SteadyClock::now(), earliest_ns_));
}

void TaskFolders::schedule(int64_t when_ns) {
  if (timer_ != 0 && due_ns_ <= when_ns) return;
  loop_.cancel(timer_);
  due_ns_ = when_ns;
  timer_ = loop_.at(when_ns, [this] {
    timer_ = 0;
    look();
  });
}

void TaskFolders::look() {
  busy_ = true;
  begun_ns_ = SteadyClock::now();
  background_->run([this] { outdated_ = find_outdated(); }, [this] { ask_next(0); });
}

// One after the other: whoever is asked has other things to do.
void TaskFolders::ask_next(size_t at) {
  if (at == 0) unwanted_.clear();
  if (at < outdated_.size()) {
    if (outdated_[at].name[0] == '.') {  // half removed by somebody who was ended
      unwanted_.push_back(outdated_[at]);
      return ask_next(at + 1);
    }
    return ask_(outdated_[at].name, [this, at, alive = std::weak_ptr<int>(alive_)](bool ended) {
      if (alive.expired()) return;
      if (ended) unwanted_.push_back(outdated_[at]);
      ask_next(at + 1);
    });
  }
  background_->run(
      [this] {
        for (const Folder& folder : unwanted_) {
          if (!ends_) remove(folder);
        }
      },
      [this] { rest(); });
}

void TaskFolders::rest() {
  busy_ = false;
  const int64_t now_ns = SteadyClock::now();
  earliest_ns_ = now_ns + std::max(kLeastPauseNs, (kShare - 1) * (now_ns - begun_ns_));
  schedule(std::exchange(again_, false) ? earliest_ns_ : std::max(earliest_ns_, now_ns + kEveryNs));
}

int64_t TaskFolders::now_s() const {
  return policy::believed_now_s(time(nullptr), started_s_, (SteadyClock::now() - started_ns_) / kNsPerSec);
}

std::vector<TaskFolders::Folder> TaskFolders::find_outdated() const {
  std::vector<Folder> folders;
  std::vector<policy::EndedFolder> facts;
  std::vector<Folder> outdated;
  std::error_code error;
  for (auto it = fs::directory_iterator(root_, error); !error && it != fs::directory_iterator() && !ends_;
       it.increment(error)) {
    const Fd taken = take_folder(it->path());
    struct stat info {};
    if (!taken.valid() || fstat(taken.get(), &info) != 0) continue;
    Folder folder;
    folder.name = it->path().filename().string();
    folder.inode = info.st_ino;
    folder.facts.last_used_s = info.st_mtim.tv_sec;
    if (folder.name[0] == '.') {
      if (folder.name.rfind(kRemoving, 0) == 0) outdated.push_back(std::move(folder));
      continue;
    }
    folders.push_back(std::move(folder));
  }
  for (Folder& folder : folders) {  // whoever wants one need not wait while it is measured
    folder.facts.bytes = disk_bytes(root_ / folder.name, ends_);
    facts.push_back(folder.facts);
  }
  if (ends_) return {};
  for (const size_t i : policy::choose_outdated(facts, now_s(), limits_)) {
    if (outdated.size() < kMostAtOnce) outdated.push_back(folders[i]);
  }
  return outdated;
}

// Under another name first: a task that comes back finds a folder that is whole, or none.
void TaskFolders::remove(const Folder& folder) const {
  const fs::path path = root_ / folder.name;
  const Fd taken = take_folder(path);
  struct stat info {};
  if (!taken.valid() || fstat(taken.get(), &info) != 0) return;
  if (info.st_ino != folder.inode || info.st_mtim.tv_sec != folder.facts.last_used_s) return;  // used since
  fs::path gone = path;
  if (folder.name[0] != '.') {
    gone = root_ / (kRemoving + folder.name);
    if (rename(path.c_str(), gone.c_str()) != 0) {
      spdlog::warn("{}", errno_error("cannot remove " + path.string(), errno).text());
      return;
    }
  }
  if (const auto failed = remove_tree(gone, ends_)) {
    if (!ends_) spdlog::warn("{}", errno_error("cannot remove " + gone.string(), failed.value()).text());
    return;
  }
  if (folder.name[0] == '.') return;
  const int64_t age_s = std::max<int64_t>(0, now_s() - folder.facts.last_used_s);
  spdlog::info("removed what side task {} had left, {} of {} h ago: {}", folder.name, mib(folder.facts.bytes),
               age_s / 3600, age_s > limits_.age_s ? "older than --keep-days" : "beyond --keep-bytes");
}

}  // namespace freeride::worker
