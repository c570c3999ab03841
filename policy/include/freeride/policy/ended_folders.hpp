// Which of the folders that ended side tasks have left are kept, and which go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace freeride::policy {

/// What an ended task has left on disk.
struct EndedFolder {
  int64_t bytes = 0;
  int64_t last_used_s = 0;  ///< by the wall clock: a host may have been off since
};

struct KeepLimits {
  int64_t age_s = 7 * 86'400;
  int64_t bytes = 2ll << 30;  ///< of all together
};

/// The wall clock, as far as it is believed: it read `begun_s` when this process began, and `passed_s` have passed
/// since. A clock that was stepped forward meanwhile makes nothing older; at worst a folder goes later than it might.
constexpr int64_t believed_now_s(int64_t wall_s, int64_t begun_s, int64_t passed_s) {
  return wall_s < begun_s + passed_s ? wall_s : begun_s + passed_s;
}

/// Indices of those that go: whatever is older than `age_s`, and of the rest what the younger ones leave no room for.
/// Oldest first. One whose time lies ahead (a clock was set back) counts as just used.
std::vector<size_t> choose_outdated(const std::vector<EndedFolder>& folders, int64_t now_s, const KeepLimits& limits);

}  // namespace freeride::policy
