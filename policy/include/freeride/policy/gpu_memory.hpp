// GPU memory: what side tasks may have beside training, and who has to go when training wants more.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace freeride::policy {

/// A live side task on the device.
struct MemoryHolder {
  uint64_t id = 0;  ///< grows: the larger one came later
  int32_t priority = 0;
  int64_t limit_bytes = 0;  ///< the most it can come to hold
  int64_t used_bytes = 0;   ///< what it holds now; counts where it is more than the limit
};

/// A device. All in bytes.
struct GpuMemorySnapshot {
  int64_t total_bytes = 0;
  int64_t training_bytes = 0;  ///< the most that everybody but side tasks has held: TrainingMemory::high_bytes()
  int64_t reserve_bytes = 0;   ///< kept free for training to grow into
  std::vector<MemoryHolder> tasks;
};

/// What one more side task could have: total − training's high-water mark − reserve − what live tasks may come to hold.
/// Never negative. Pure; any thread.
int64_t usable_bytes(const GpuMemorySnapshot& snapshot);

/// Ids of the tasks to evict, in this order. It assumes that every task uses its whole limit. If at least half of the
/// reserve is left for training then, nobody is evicted. Otherwise the lowest priority is evicted first, then the
/// youngest, until the whole reserve is there again. Half, so that the first byte that training adds does not evict
/// what was admitted beside a full reserve.
std::vector<uint64_t> choose_evicted(const GpuMemorySnapshot& snapshot);

/// Training's high-water mark: the most that was in use on the device and was not side tasks', in two looks in a row.
/// Two, because the driver's figures for the device and for its processes are not of one moment, least of all when a
/// process starts or ends. It counts from the moment the present trainers came, since the memory of one that has ended
/// is free for good. One thread.
class TrainingMemory {
 public:
  /// One look. `attached`: trainers' ranks on the device now; without any, the mark follows what is in use.
  void look(int64_t used_bytes, int64_t side_tasks_bytes, bool attached);
  int64_t high_bytes() const { return high_bytes_; }

 private:
  std::array<int64_t, 2> last_{};
  uint32_t looks_ = 0;
  int64_t high_bytes_ = 0;
};

}  // namespace freeride::policy
