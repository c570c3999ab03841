// Memory: what the program is told of the device's memory, so that what takes a share takes one of its limit.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace freeride::shim {

/// Counts this process's allocations. It enforces nothing: MPS does. Any thread; a lock for a map's time.
class Memory {
 public:
  /// 0: no limit, and what the driver says is passed on.
  void limit(uint64_t bytes) { limit_bytes_ = bytes; }
  void allocated(uint64_t what, uint64_t bytes);
  void freed(uint64_t what);

  /// What the program is told, of what the driver says.
  uint64_t total(uint64_t total_bytes) const;
  uint64_t free(uint64_t free_bytes, uint64_t total_bytes) const;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  uint64_t limit_bytes_ = 0;
  std::atomic<uint64_t> used_bytes_{0};
  std::mutex mutex_;
  std::unordered_map<uint64_t, uint64_t> sizes_;
};

}  // namespace freeride::shim
