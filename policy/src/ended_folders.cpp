#include "freeride/policy/ended_folders.hpp"

#include <algorithm>
#include <numeric>

namespace freeride::policy {

std::vector<size_t> choose_outdated(const std::vector<EndedFolder>& folders, int64_t now_s, const KeepLimits& limits) {
  std::vector<size_t> youngest_first(folders.size());
  std::iota(youngest_first.begin(), youngest_first.end(), size_t{0});
  std::stable_sort(youngest_first.begin(), youngest_first.end(),
                   [&](size_t a, size_t b) { return folders[a].last_used_s > folders[b].last_used_s; });
  std::vector<size_t> outdated;
  int64_t room_bytes = limits.bytes;
  for (const size_t i : youngest_first) {
    const int64_t bytes = std::max<int64_t>(0, folders[i].bytes);
    const bool old = now_s - folders[i].last_used_s > limits.age_s;
    if (old || bytes > room_bytes) {
      outdated.push_back(i);
    } else {
      room_bytes -= bytes;
    }
  }
  std::reverse(outdated.begin(), outdated.end());
  return outdated;
}

}  // namespace freeride::policy
