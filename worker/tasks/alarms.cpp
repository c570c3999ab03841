#include "tasks/alarms.hpp"

#include <string_view>

namespace freeride::worker {
namespace {

constexpr double kMostCount = 9e15;  // whole numbers above it are not exact

}  // namespace

std::vector<Alarms::Alarm> Alarms::note(const std::string& task, const std::map<std::string, double>& metrics,
                                        int64_t now_ns) {
  std::vector<Alarm> alarms;
  const std::string_view prefix = kPrefix;
  for (auto it = metrics.lower_bound(kPrefix); it != metrics.end() && it->first.starts_with(prefix); ++it) {
    const std::string name = it->first.substr(prefix.size());
    if (name.empty() || !(it->second >= 0 && it->second <= kMostCount)) continue;
    Told& told = tasks_[task][name];
    const auto count = static_cast<uint64_t>(it->second);
    if (count < told.count) told.count = 0;
    if (count == told.count || now_ns < told.not_before_ns) continue;
    alarms.push_back({name, count, count - told.count});
    told = {count, now_ns + kPauseNs};
  }
  return alarms;
}

}  // namespace freeride::worker
