// For process tests as root: processes of other users'.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "daemon/worker_process_test_support.hpp"

namespace freeride::worker::testing {

constexpr uid_t kNobody = 65534, kOther = 65533;

/// Makes the rig's run folder one that all users can pass into.
inline void open_to_all(const Rig& rig) {
  std::filesystem::permissions(rig.temp.path(), std::filesystem::perms(0755));
}

/// A process of user `uid`, forked from this one; it stays until the end of the scope, also after `body`.
class Stranger {
 public:
  using Tell = std::function<void(const std::string& line)>;

  Stranger(uid_t uid, const std::function<void(const Tell&)>& body) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    from_.reset(ends[0]);
    pid_ = fork();
    if (pid_ != 0) {
      close(ends[1]);
      return;
    }
    if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) _exit(98);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      body([&](const std::string& line) {
        const std::string whole = line + "\n";
        if (write(ends[1], whole.data(), whole.size()) < 0) _exit(97);
      });
    } catch (const std::exception& error) {
      const std::string text = std::string("threw: ") + error.what() + "\n";
      if (write(ends[1], text.data(), text.size()) < 0) _exit(96);
    }
    for (;;) pause();
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  pid_t pid() const { return pid_; }

  /// The next line that it tells, or "nothing" after the watchdog.
  std::string line() {
    for (size_t end = said_.find('\n');; end = said_.find('\n')) {
      if (end != std::string::npos) {
        const std::string first = said_.substr(0, end);
        said_.erase(0, end + 1);
        return first;
      }
      pollfd wait{from_.get(), POLLIN, 0};
      char text[4096];
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(kWatchdog).count();
      const ssize_t got = poll(&wait, 1, static_cast<int>(ms)) == 1 ? read(from_.get(), text, sizeof(text)) : 0;
      if (got <= 0) return "nothing";
      said_.append(text, static_cast<size_t>(got));
    }
  }

 private:
  Fd from_;
  pid_t pid_ = 0;
  std::string said_;
};

}  // namespace freeride::worker::testing
