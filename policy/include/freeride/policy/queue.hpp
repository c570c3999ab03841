// Queue order: in which order waiting side tasks are offered to placement.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace freeride::policy {

enum class QueueOrder {
  kSubmission,  ///< higher priority first, then first come, first served
  kFairShare,   ///< higher priority first, then the user with the fewest tasks, then first come
};

struct QueuedTask {
  uint64_t id = 0;       ///< counts up with every submission
  int32_t priority = 0;  ///< higher first
  std::string user;
};

/// The ids in `tasks` in the order in which they are to be placed. For fair share, `live_by_user` holds how many tasks
/// each user has on workers now; a task counts for its user from its turn on, so that the users alternate. Pure; O(n
/// log n), fair share O(n · users).
std::vector<uint64_t> order_queue(std::vector<QueuedTask> tasks, QueueOrder order,
                                  std::map<std::string, uint64_t> live_by_user = {});

}  // namespace freeride::policy
