// DiskTrouble: tells the log that the disk refuses the manager's state.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>

#include "freeride/base/clock.hpp"
#include "freeride/base/result.hpp"

namespace freeride::manager {

/// One thread; does not block.
class DiskTrouble {
 public:
  explicit DiskTrouble(const Clock& clock) : clock_(clock) {}

  /// Says it once a minute, however often it happens.
  void say(const Error& error) {
    const int64_t now = clock_.now_ns();
    if (said_ns_ != 0 && now - said_ns_ < 60 * kNsPerSec) return;
    said_ns_ = now;
    spdlog::error("{}; going on from memory, trying again", error.text());
  }

 private:
  const Clock& clock_;
  int64_t said_ns_ = 0;
};

}  // namespace freeride::manager
