// KeptWorker: one device's worker, started again whenever it ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "control_groups.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/fd.hpp"

namespace freeride::node {

/// How long to wait before the next start of what has ended `ends` times in a row: 1 s, 2 s, 4 s, … at most a minute.
int64_t pause_ns(int ends);
/// What has run for so long has not ended in a row.
constexpr int64_t kLongRunNs = 60 * kNsPerSec;

/// How this process was when it began: what it starts is to be so again. One for the process, made before the process
/// changes its own limits.
struct Beginning {
  static Beginning now();
  uint64_t data_limit = 0;    ///< RLIMIT_DATA
  std::string oom_score_adj;  ///< as in /proc/self; empty: it cannot be read
  ControlGroups groups;       ///< for what is started
};

/// One thread. A worker outlives this object, and the process; the next one finds it by its socket and leaves it
/// running. Nothing here waits.
class KeptWorker {
 public:
  /// `words`: the program and its arguments; `socket`: where the worker listens to trainers.
  KeptWorker(std::string device, std::vector<std::string> words, std::filesystem::path socket, Beginning beginning);

  /// Sees whether it has ended; starts it where it is time to.
  void look(int64_t now_ns);
  /// Becomes readable when it ends; -1: it does not run.
  int fd() const { return process_.get(); }
  int64_t next_look_ns() const;  ///< when look() has something to do though fd() says nothing; 0: never
  /// Asks it to end, for good: it is not started again.
  void end();
  bool ended() const { return ending_ && !process_.valid(); }
  const std::string& device() const { return device_; }

 private:
  bool find_running();
  void start(int64_t now_ns);
  void has_ended(int64_t now_ns);

  const std::string device_;
  const std::vector<std::string> words_;
  const std::filesystem::path socket_;
  const Beginning beginning_;
  Fd process_;  // a pidfd
  pid_t pid_ = 0;
  bool ours_ = false;  // a child of this process
  bool ending_ = false;
  int ends_ = 0;
  int64_t started_ns_ = 0, start_at_ns_ = 0;
};

}  // namespace freeride::node
