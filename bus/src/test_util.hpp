// What the bus's tests share.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "freeride/bus/sockets.hpp"

namespace freeride::bus::test {

/// A folder of its own for sockets, removed at the end.
struct RunDir {
  RunDir() {
    char name[] = "/tmp/freeride-bus-XXXXXX";
    path = ::mkdtemp(name);
  }
  RunDir(const RunDir&) = delete;
  RunDir& operator=(const RunDir&) = delete;
  ~RunDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string endpoint(const std::string& name) const { return "ipc://" + (path / name).string(); }
  std::filesystem::path path;
};

// A watchdog, far longer than anything takes: it only keeps a broken program from hanging the tests.
constexpr std::chrono::seconds kWatchdog{60};
constexpr std::chrono::milliseconds kWatchdogMs{60'000};

/// Repeats `attempt` until it says true; false after the watchdog. For what another thread brings about (a connection).
inline bool eventually(const std::function<bool()>& attempt) {
  const auto deadline = std::chrono::steady_clock::now() + kWatchdog;
  while (std::chrono::steady_clock::now() < deadline) {
    if (attempt()) return true;
  }
  return false;
}

}  // namespace freeride::bus::test
