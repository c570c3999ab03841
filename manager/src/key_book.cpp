#include "key_book.hpp"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "freeride/base/access.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/daemon_thread.hpp"
#include "freeride/base/names.hpp"

namespace freeride::manager {
namespace {

constexpr const char* kEnding = ".key";
constexpr int64_t kReadAgainNs = kNsPerSec;
constexpr uint32_t kWatched = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ATTRIB |
                              IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

// Not the file's or the folder's: too few descriptors, a disk that answers no more.
bool may_pass(const Error& error) {
  return error.code == Code::kExhausted || error.code == Code::kInternal;
}

Status check_folder(const std::filesystem::path& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) {
    return errno_error("cannot look at the keys in " + folder.string(), errno,
                       "make a key with freeride-ctl keys make NAME --role ROLE");
  }
  if (!is_trusted_user(info.st_uid) || (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error{Code::kPermission,
                 "the keys in " + folder.string() + " are not used: others than root and this user may write there",
                 "chmod 700 " + folder.string() + ", and look who may have changed it (freeride-ctl keys list)"};
  }
  return {};
}

}  // namespace

KeyBook::KeyBook(std::filesystem::path folder, std::string secret_key, size_t most)
    : folder_(std::move(folder)),
      secret_key_(std::move(secret_key)),
      most_(most),
      notify_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Result<std::unique_ptr<KeyBook>> KeyBook::open(const std::filesystem::path& keys_dir, size_t most,
                                               const std::filesystem::path& authorized) {
  const auto folder = authorized.empty() ? keys_dir / "authorized" : authorized;
  for (const auto& one : {keys_dir, folder}) {
    if (auto fine = check_folder(one); !fine) return fine.error();
  }
  auto own = read_secret_key(keys_dir / "manager.key");
  if (!own) return own.error();
  std::unique_ptr<KeyBook> book(new KeyBook(folder, own->secret_key, most));
  book->reload();
  if (!book->notify_.valid() || !book->stop_.valid() || book->watched_.second == 0)
    return errno_error("cannot follow " + folder.string(), errno, "raise fs.inotify.max_user_instances");
  try {
    book->thread_ = std::thread([&book = *book] { run_or_end("the watch over the keys", [&book] { book.follow(); }); });
  } catch (const std::system_error& error) {
    return errno_error("cannot start the watch over the keys", error.code().value());
  }
  return book;
}

KeyBook::~KeyBook() {
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void KeyBook::on_change(std::function<void()> changed) {
  const std::lock_guard lock(changed_mutex_);
  changed_ = std::move(changed);
}

void KeyBook::tell() {
  const std::lock_guard lock(changed_mutex_);
  if (changed_) changed_();
}

std::optional<KeyBook::Entry> KeyBook::find(const std::string& public_key) {
  std::optional<Entry> found;
  bool changed = false;
  {
    const std::lock_guard lock(mutex_);
    changed = look();
    if (const auto key = keys_.find(public_key); key != keys_.end()) found = key->second;
  }
  if (changed) tell();
  return found;
}

std::optional<KeyBook::Entry> KeyBook::known(const std::string& public_key) {
  const std::lock_guard lock(mutex_);
  const auto key = keys_.find(public_key);
  return key == keys_.end() ? std::nullopt : std::optional(key->second);
}

// Nobody may keep a right that was revoked: what ends this thread ends the process.
void KeyBook::follow() {
  pollfd fds[2] = {{notify_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  for (;;) {
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      throw std::system_error(errno, std::generic_category(), "cannot follow " + folder_.string());
    }
    if (fds[1].revents != 0) return;
    if (fds[0].revents == 0) continue;
    bool changed = false;
    {
      const std::lock_guard lock(mutex_);
      changed = look();
    }
    if (changed) tell();
  }
}

// Whatever the notifications say, the folder is read anew: they are few. A folder that has taken the place of the one
// that is watched says nothing.
bool KeyBook::look() {
  ++looks_;
  alignas(inotify_event) char buffer[4096];
  struct stat info {};
  const bool there = stat(folder_.c_str(), &info) == 0;
  bool any = there ? info.st_ino != watched_.second || info.st_dev != watched_.first : watched_.second != 0;
  while (read(notify_.get(), buffer, sizeof buffer) > 0) any = true;
  // What could not be read says nothing when it can be.
  any = any || (read_again_ns_ != 0 && SteadyClock::now() >= read_again_ns_);
  if (any) reload();
  return any;
}

void KeyBook::reload() {
  struct stat info {};
  watched_ = {};
  // The watch first: what changes while the folder is read is read again.
  if (stat(folder_.c_str(), &info) == 0 && inotify_add_watch(notify_.get(), folder_.c_str(), kWatched) >= 0)
    watched_ = {info.st_dev, info.st_ino};
  std::map<std::string, Entry> keys;
  std::set<std::string> twice, complaints;
  bool again = false;
  const auto complain = [&](const std::string& about, const std::string& what) {
    complaints.insert(about);
    if (complained_.count(about) == 0) spdlog::error("{}", what);
  };
  std::error_code failed;
  if (auto fine = check_folder(folder_); !fine || watched_.second == 0) {
    if (!fine) complain(folder_.string(), fine.error().text());
    again = !fine && may_pass(fine.error());
  } else {
    for (std::filesystem::directory_iterator at(folder_, failed), end; !failed && at != end; at.increment(failed)) {
      const auto file = at->path();
      if (file.extension() != kEnding || file.filename().string()[0] == '.') continue;
      const auto key = read_authorized_key(file);
      if (!key) {
        complain(file.string(), key.error().text());
        again = again || may_pass(key.error());
        continue;
      }
      const auto role = policy::role_of_key(key->role);
      if (!role || key->name != file.stem().string() || key->account.empty() ||
          (*role == policy::Role::kNode && !is_plain(key->host))) {
        complain(file.string(), "the key file " + file.string() +
                                    " is not used: its role, account, host or name is none; make it again with "
                                    "freeride-ctl keys make");
      } else if (keys.size() >= most_) {
        complain(folder_.string(), folder_.string() + " holds more than " + std::to_string(most_) +
                                       " keys; the others are not used (--max-workers)");
      } else if (!keys.emplace(key->public_key, Entry{key->name, key->account, key->host, *role}).second) {
        twice.insert(key->public_key);
        complain(file.string(), "the key of " + file.string() + " is authorised twice and not used; remove one file");
      }
    }
    if (failed) {
      complain(folder_.string(), "cannot read the keys in " + folder_.string() + ": " + failed.message());
      keys.clear();
      again = true;
    }
  }
  for (const std::string& key : twice) keys.erase(key);
  complained_ = std::move(complaints);
  keys_ = std::move(keys);
  read_again_ns_ = again ? SteadyClock::now() + kReadAgainNs : 0;
}

}  // namespace freeride::manager
