// ShimPage: the counters that all processes of a program share, as this process adds to them.
#pragma once

#include <cstdint>
#include <string>

#include "freeride/pages.h"

namespace freeride::shim {

/// Adds to the shim page of a file, or to memory of its own where there is none. Any thread; atomic; nothing blocks.
/// What other processes of the program have written there is never trusted.
class ShimPage {
 public:
  /// Maps `path`, or nothing where it is empty. False: it cannot be mapped writable, and the counters are for nobody.
  bool open(const char* path);

  void add(uint64_t freeride_shim_page::*field, uint64_t by = 1) {
    __atomic_fetch_add(&(page_->*field), by, __ATOMIC_RELAXED);
  }
  void set(uint64_t freeride_shim_page::*field, uint64_t value) {
    __atomic_store_n(&(page_->*field), value, __ATOMIC_RELAXED);
  }
  uint64_t* counter(uint64_t freeride_shim_page::*field) { return &(page_->*field); }
  uint64_t get(uint64_t freeride_shim_page::*field) const {
    return __atomic_load_n(&(page_->*field), __ATOMIC_RELAXED);
  }
  /// The larger one stays. True: it is this one.
  bool raise(uint64_t freeride_shim_page::*field, uint64_t value);
  /// A text beside a number. Another process may write it at the same time.
  void text(char (freeride_shim_page::*field)[64], const std::string& value);
  /// Where calls of the unknown name are counted; -1: no place is left, which is counted, too.
  int place_of(const std::string& name);
  uint64_t* calls_of(int place) { return &page_->names[place].calls; }

 private:
  freeride_shim_page own_{};
  freeride_shim_page* page_ = &own_;
};

}  // namespace freeride::shim
