#include "freeride/policy/gpu_memory.hpp"

#include <algorithm>
#include <limits>

namespace freeride::policy {
namespace {

int64_t held(const MemoryHolder& task) {
  return std::max<int64_t>({0, task.limit_bytes, task.used_bytes});
}

// What is left for training should every task use up its limit; may be negative. Sums saturate: a limit that makes no
// sense must not wrap round to room for everybody.
int64_t left_for_training(const GpuMemorySnapshot& s) {
  int64_t left = std::max<int64_t>(0, s.total_bytes) - std::max<int64_t>(0, s.training_bytes);
  for (const MemoryHolder& task : s.tasks) {
    const int64_t bytes = held(task);
    left = left < std::numeric_limits<int64_t>::min() + bytes ? std::numeric_limits<int64_t>::min() : left - bytes;
  }
  return left;
}

}  // namespace

int64_t usable_bytes(const GpuMemorySnapshot& s) {
  const int64_t left = left_for_training(s), reserve = std::max<int64_t>(0, s.reserve_bytes);
  return left <= reserve ? 0 : left - reserve;
}

std::vector<uint64_t> choose_evicted(const GpuMemorySnapshot& s) {
  const int64_t reserve = std::max<int64_t>(0, s.reserve_bytes);
  GpuMemorySnapshot rest = s;
  std::vector<uint64_t> evicted;
  if (left_for_training(rest) >= reserve / 2) return evicted;
  std::sort(rest.tasks.begin(), rest.tasks.end(), [](const MemoryHolder& a, const MemoryHolder& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.id < b.id;
  });
  while (!rest.tasks.empty() && left_for_training(rest) < reserve) {
    evicted.push_back(rest.tasks.back().id);
    rest.tasks.pop_back();
  }
  return evicted;
}

void TrainingMemory::look(int64_t used_bytes, int64_t side_tasks_bytes, bool attached) {
  last_[looks_++ % last_.size()] = std::max<int64_t>(0, used_bytes - std::max<int64_t>(0, side_tasks_bytes));
  const auto seen = last_.begin() + std::min<uint32_t>(looks_, last_.size());
  const int64_t now_bytes = *std::min_element(last_.begin(), seen);
  high_bytes_ = attached ? std::max(high_bytes_, now_bytes) : now_bytes;
}

}  // namespace freeride::policy
