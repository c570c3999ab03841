#include "memory.hpp"

#include <algorithm>

namespace freeride::shim {

void Memory::allocated(uint64_t what, uint64_t bytes) {
  if (limit_bytes_ == 0) return;
  const std::lock_guard lock(mutex_);
  used_bytes_ += bytes - sizes_[what];
  sizes_[what] = bytes;
}

void Memory::freed(uint64_t what) {
  if (limit_bytes_ == 0) return;
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(what);
  if (found == sizes_.end()) return;
  used_bytes_ -= found->second;
  sizes_.erase(found);
}

uint64_t Memory::total(uint64_t total_bytes) const {
  return limit_bytes_ == 0 ? total_bytes : std::min(limit_bytes_, total_bytes);
}

uint64_t Memory::free(uint64_t free_bytes, uint64_t total_bytes) const {
  if (limit_bytes_ == 0 || total_bytes <= limit_bytes_) return free_bytes;
  const uint64_t used = used_bytes_.load();
  return std::min(free_bytes, limit_bytes_ - std::min(limit_bytes_, used));
}

}  // namespace freeride::shim
