#include "audit_log.hpp"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "freeride/base/access.hpp"
#include "freeride/base/daemon_thread.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::manager {
namespace {

constexpr std::chrono::seconds kLastWait{2};

std::string iso_time(int64_t unix_ms) {
  const time_t seconds = unix_ms / 1000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char date[64], whole[80];
  (void)std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  (void)std::snprintf(whole, sizeof whole, "%s.%03dZ", date, static_cast<int>(unix_ms % 1000));
  return whole;
}

std::string line_of(const AuditEntry& entry, uint64_t lost) {
  nlohmann::ordered_json line;
  line["time"] = iso_time(entry.unix_ms);
  if (entry.by.local) {
    line["uid"] = entry.by.uid;
    line["user"] = clean_utf8(entry.by.account);
    line["pid"] = entry.by.pid;
  } else {
    line["key"] = clean_utf8(entry.by.key);
    line["user"] = clean_utf8(entry.by.account);
    line["address"] = clean_utf8(entry.by.address);
  }
  line["role"] = policy::to_string(entry.by.role);
  line["command"] = clean_utf8(entry.command);
  line["arguments"] = nlohmann::ordered_json::parse(entry.arguments, nullptr, false);
  line["outcome"] = entry.outcome;
  if (!entry.message.empty()) line["message"] = clean_utf8(entry.message);
  if (lost > 0) line["lost_before"] = lost;
  return line.dump() + "\n";
}

Result<Fd> open_file(const std::filesystem::path& file, std::optional<gid_t> group) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  Fd fd(::open(file.c_str(), kFlags, 0640));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0)
    return errno_error("cannot open the audit log " + file.string(), errno, "choose another with --audit-log");
  if (!S_ISREG(info.st_mode)) {
    return Error{Code::kInvalidArgument, "the audit log " + file.string() + " is not a file",
                 "choose another with --audit-log"};
  }
  if (auto closed = make_private_file(file, group); !closed) return closed.error();
  return fd;
}

bool is_open_as(int fd, const std::filesystem::path& file) {
  struct stat named {
  }, held{};
  return stat(file.c_str(), &named) == 0 && fstat(fd, &held) == 0 && named.st_ino == held.st_ino &&
         named.st_dev == held.st_dev;
}

}  // namespace

struct AuditLog::Shared {
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !waiting.empty(); });
      if (waiting.empty()) break;
      const AuditEntry entry = std::move(waiting.front());
      waiting.pop_front();
      const uint64_t lost_before = lost;
      lock.unlock();
      const bool written = write(line_of(entry, lost_before));
      lock.lock();
      lost = written ? lost - lost_before : lost + 1;
    }
    ended = true;
    changed.notify_all();
  }

  bool write(const std::string& line) {
    if (!is_open_as(fd.get(), file)) {
      auto again = open_file(file, group);
      if (!again) return trouble(again.error());
      fd = std::move(*again);
    }
    if (write_all(fd.get(), line)) return true;
    return trouble(errno_error("cannot write the audit log " + file.string(), errno, "free space on that disk"));
  }

  bool trouble(const Error& error) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= say_again) spdlog::error("{}; commands continue without it", error.text());
    if (now >= say_again) say_again = now + std::chrono::minutes(1);
    return false;
  }

  std::filesystem::path file;
  std::optional<gid_t> group;
  Fd fd;  // the thread's, as is the next
  std::chrono::steady_clock::time_point say_again{};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<AuditEntry> waiting;
  uint64_t lost = 0;
  bool ending = false, ended = false;
};

Result<std::unique_ptr<AuditLog>> AuditLog::open(const std::filesystem::path& file, std::optional<gid_t> group) {
  auto opened = open_file(file, group);
  if (!opened) return opened.error();
  auto shared = std::make_shared<Shared>();
  shared->file = file;
  shared->group = group;
  shared->fd = std::move(*opened);
  try {
    std::thread([shared] { run_or_end("the audit log", [&] { shared->run(); }); }).detach();
  } catch (const std::system_error& error) {
    return errno_error("cannot start the audit log", error.code().value());
  }
  return std::unique_ptr<AuditLog>(new AuditLog(std::move(shared)));
}

AuditLog::~AuditLog() {
  std::unique_lock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(lock, kLastWait, [this] { return shared_->ended; });
}

void AuditLog::note(AuditEntry entry) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->waiting.size() >= kMostWaiting) {
    ++shared_->lost;
    return;
  }
  shared_->waiting.push_back(std::move(entry));
  shared_->changed.notify_all();
}

}  // namespace freeride::manager
