// Child: a program that this process has started, and that ends with it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::ctl {

/// How a child ended.
struct Ending {
  int code = -1;             ///< -1: by a signal
  int signal = 0;            ///< 0: by itself
  std::string text() const;  ///< "with code 1", "by signal 9 (Killed)"
};

/// One thread, the main one: the kernel asks the child to end (SIGTERM) when the thread that started it does, however
/// that comes. Its process group is its own, so that no Ctrl-C reaches it. The object's end leaves it running.
class Child {
 public:
  /// Starts `words`, a path and its arguments, with an empty input. What it says goes to the file `log`, which is made
  /// anew; the last run's is kept as `log`.1. Errors: those of files and of fork.
  static Result<Child> start(const std::vector<std::string>& words, std::filesystem::path log);

  pid_t pid() const { return pid_; }
  const std::filesystem::path& log() const { return log_; }
  /// Becomes readable when it ends.
  int fd() const { return process_.get(); }
  /// Nothing: it runs. Does not block.
  std::optional<Ending> ended();
  /// In good order, also where it was stopped (SIGSTOP).
  void ask_to_end() const;
  void kill() const;

 private:
  Child(pid_t pid, Fd process, std::filesystem::path log)
      : pid_(pid), process_(std::move(process)), log_(std::move(log)) {}
  void send(int signal) const;

  pid_t pid_;
  Fd process_;  // a pidfd
  std::filesystem::path log_;
  std::optional<Ending> ending_;
};

}  // namespace freeride::ctl
