// Alarms: when a side task's own figures say that something is wrong with its device.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace freeride::worker {

/// A metric whose name begins with "alarm." is a count, and a rise of it is an alarm. It is the plugin's word, so it is
/// passed on and nothing else: whose word it is and which device it can only mean, the worker's own, is said with it.
/// Of each metric at most one alarm a minute is told, with the count of that moment, so that nothing is lost by it. One
/// thread.
class Alarms {
 public:
  static constexpr const char* kPrefix = "alarm.";
  static constexpr int64_t kPauseNs = 60'000'000'000;
  struct Alarm {
    std::string name;  ///< without the prefix
    uint64_t count = 0, rise = 0;
  };

  /// The task's metrics as they are now. A count that is lower than before has begun anew.
  std::vector<Alarm> note(const std::string& task, const std::map<std::string, double>& metrics, int64_t now_ns);
  void forget(const std::string& task) { tasks_.erase(task); }

 private:
  struct Told {
    uint64_t count = 0;
    int64_t not_before_ns = INT64_MIN;
  };
  std::map<std::string, std::map<std::string, Told>> tasks_;
};

}  // namespace freeride::worker
