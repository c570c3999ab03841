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
  std::string account = {};  ///< to which what it gets is charged
};

/// What accounts have had lately (policy/account_use), and what one more task counts for, in the same unit.
struct AccountTurns {
  std::map<std::string, double> had;  ///< by account; one that is not there has had nothing
  double of_a_task = 0;               ///< 0: accounts are not told apart
};

/// The ids in `tasks` in the order in which they are to be placed. Higher priority is first, then the account that has
/// had least, then `order` within an account. A task counts for its account from its turn on, so accounts alternate.
/// Among equal accounts the one whose next task came first is first. With one account only `order` counts.
///
/// For fair share, `live_by_user` holds how many tasks each user has on workers now. A task counts for its user from
/// its turn on, so users alternate. Pure; O(n log n), fair share O(n · users).
///
/// Nobody waits for ever. Let d be what one account has had more than another. It waits for at most d ÷ `of_a_task` + 1
/// of the other's tasks, since whoever places tasks charges at least `of_a_task` for each.
std::vector<uint64_t> order_queue(std::vector<QueuedTask> tasks, QueueOrder order,
                                  std::map<std::string, uint64_t> live_by_user = {}, AccountTurns accounts = {});

}  // namespace freeride::policy
