#include "freeride/policy/queue.hpp"

#include <algorithm>
#include <deque>
#include <utility>

namespace freeride::policy {
namespace {

// Tasks of one priority, by submission: repeatedly the first task of the user who has the fewest.
void deal(const std::vector<QueuedTask>& tasks, std::map<std::string, uint64_t>& live, std::vector<uint64_t>& out) {
  std::map<std::string, std::deque<uint64_t>> waiting;
  for (const auto& task : tasks) waiting[task.user].push_back(task.id);
  while (!waiting.empty()) {
    auto next = waiting.begin();
    for (auto it = waiting.begin(); it != waiting.end(); ++it) {
      if (std::make_pair(live[it->first], it->second.front()) < std::make_pair(live[next->first], next->second.front()))
        next = it;
    }
    out.push_back(next->second.front());
    ++live[next->first];
    next->second.pop_front();
    if (next->second.empty()) waiting.erase(next);
  }
}

}  // namespace

std::vector<uint64_t> order_queue(std::vector<QueuedTask> tasks, QueueOrder order,
                                  std::map<std::string, uint64_t> live_by_user) {
  std::sort(tasks.begin(), tasks.end(), [](const QueuedTask& a, const QueuedTask& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.id < b.id;
  });
  std::vector<uint64_t> ids;
  ids.reserve(tasks.size());
  if (order == QueueOrder::kSubmission) {
    for (const auto& task : tasks) ids.push_back(task.id);
    return ids;
  }
  for (auto begin = tasks.begin(); begin != tasks.end();) {
    const auto end =
        std::find_if(begin, tasks.end(), [&](const QueuedTask& t) { return t.priority != begin->priority; });
    deal({begin, end}, live_by_user, ids);
    begin = end;
  }
  return ids;
}

}  // namespace freeride::policy
