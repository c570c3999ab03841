// ShimWatch: what the shim of libcuda writes down of one side task, as its worker tells it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"

namespace freeride::worker {

/// Main thread. Everything is the program's own word: it is told to people, and nothing acts upon it.
class ShimWatch {
 public:
  /// Work has been too long for its leases within this time, or it explains nothing.
  static constexpr int64_t kLatelyNs = 60'000'000'000;

  /// Reads the page in the file `path`; empty: the task has none. What cannot be read leaves what was read last.
  /// Blocks for a file's read.
  void look(const std::string& path, int64_t now_ns);
  /// One; empty where no process of the task has loaded the shim.
  const std::vector<bus::ShimCounters>& counters() const { return counters_; }
  /// Lately a submission was longer than every one of the last leases.
  bool work_too_long(int64_t now_ns) const;

 private:
  std::vector<bus::ShimCounters> counters_;
  int64_t too_long_at_ns_ = 0;  // when their number last grew; 0: it has not
};

}  // namespace freeride::worker
