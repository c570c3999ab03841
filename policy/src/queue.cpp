#include "freeride/policy/queue.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace freeride::policy {
namespace {

using Task = const QueuedTask*;

// Tasks of one priority, by submission: repeatedly the first task of the user who has the fewest.
void deal(const std::vector<Task>& tasks, std::map<std::string, uint64_t>& live, std::vector<uint64_t>& out) {
  std::map<std::string, std::deque<uint64_t>> waiting;
  for (const Task task : tasks) waiting[task->user].push_back(task->id);
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

// An account's tasks of one priority, in their order.
struct Line {
  double* had = nullptr;
  std::vector<uint64_t> ids;
  size_t next = 0;
};

// Repeatedly the next task of the account that has had least.
void take_turns(std::vector<Line>& lines, double of_a_task, std::vector<uint64_t>& out) {
  using Turn = std::tuple<double, uint64_t, size_t>;  // what its account has had, the task, the line's number
  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
  for (size_t i = 0; i < lines.size(); ++i) turns.emplace(*lines[i].had, lines[i].ids.front(), i);
  while (!turns.empty()) {
    const auto [had, id, number] = turns.top();
    turns.pop();
    out.push_back(id);
    Line& line = lines[number];
    *line.had = had + of_a_task;
    if (++line.next < line.ids.size()) turns.emplace(*line.had, line.ids[line.next], number);
  }
}

}  // namespace

std::vector<uint64_t> order_queue(std::vector<QueuedTask> tasks, QueueOrder order,
                                  std::map<std::string, uint64_t> live_by_user, AccountTurns accounts) {
  std::sort(tasks.begin(), tasks.end(), [](const QueuedTask& a, const QueuedTask& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.id < b.id;
  });
  const bool told_apart = accounts.of_a_task > 0;
  std::vector<uint64_t> ids;
  ids.reserve(tasks.size());
  for (auto begin = tasks.begin(); begin != tasks.end();) {
    const auto end =
        std::find_if(begin, tasks.end(), [&](const QueuedTask& t) { return t.priority != begin->priority; });
    std::map<std::string, std::vector<Task>> by_account;
    for (auto task = begin; task != end; ++task) by_account[told_apart ? task->account : ""].push_back(&*task);
    std::vector<Line> lines;
    for (const auto& [account, own] : by_account) {
      Line& line = lines.emplace_back();
      line.had = &accounts.had[account];
      if (order == QueueOrder::kFairShare) {
        deal(own, live_by_user, line.ids);
      } else {
        for (const Task task : own) line.ids.push_back(task->id);
      }
    }
    take_turns(lines, accounts.of_a_task, ids);
    begin = end;
  }
  return ids;
}

}  // namespace freeride::policy
