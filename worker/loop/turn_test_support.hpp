// For tests: a loop that turns until something has happened, and files as strings.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "freeride/base/clock.hpp"
#include "loop/loop.hpp"

namespace freeride::worker::testing {

inline std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary);
  out << bytes;
}

/// Runs the loop until `done` says so; the watchdog is CTest's.
template <class Done>
void turn(Loop& loop, Done done) {
  std::function<void()> look = [&] {
    if (done()) {
      loop.stop();
    } else {
      loop.at(SteadyClock::now() + 5 * kNsPerMs, look);
    }
  };
  loop.at(0, look);
  loop.run();
}

}  // namespace freeride::worker::testing
