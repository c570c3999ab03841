// For tests: a loop with a watchdog, and the fake control program.
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "freeride/base/clock.hpp"
#include "loop/loop.hpp"

namespace freeride::worker::testing {

inline std::string fake_control() {
  return std::string(FREERIDE_SOURCE_DIR) + "/worker/gpu/fake_mps_control_test_support.py";
}

/// What the fake programs started from now on do; until the end of the scope.
class FakeMode {
 public:
  explicit FakeMode(const char* mode) { setenv("FAKE_MPS", mode, 1); }
  ~FakeMode() { unsetenv("FAKE_MPS"); }
};

class TestLoop {
 public:
  TestLoop() : loop_(std::move(Loop::create().value())) {}
  Loop& operator*() { return *loop_; }
  /// Turns until `done`, or fails the test.
  void until(const std::function<bool()>& done) {
    const int64_t give_up_ns = SteadyClock::now() + 120 * kNsPerSec;
    while (!done()) {
      if (SteadyClock::now() > give_up_ns) FAIL("the watchdog ran out");
      turn();
    }
  }
  void for_a_while(int64_t ns) {
    const int64_t end_ns = SteadyClock::now() + ns;
    until([&] { return SteadyClock::now() >= end_ns; });
  }

 private:
  void turn() {  // with an end, so that conditions outside of the loop are seen too
    loop_->at(SteadyClock::now() + 5 * kNsPerMs, [this] { loop_->stop(); });
    loop_->run();
  }
  std::unique_ptr<Loop> loop_;
};

inline bool alive(pid_t pid) {
  if (pid <= 1 || ::kill(pid, 0) != 0) return false;
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const size_t end = text.rfind(')');
  return end != std::string::npos && text[end + 2] != 'Z';
}

}  // namespace freeride::worker::testing
