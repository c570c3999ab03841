// Waiting for any of several futex words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "freeride/base/result.hpp"

namespace freeride {

/// A set of words, each with the value it is expected to have. Not thread-safe. No allocation.
class WaitSet {
 public:
  static constexpr size_t kMost = 128;  // the kernel's FUTEX_WAITV_MAX

  void clear() { count_ = 0; }
  /// A word on a page that other processes map, also a read-only one. False, and the word is not waited for, when full.
  bool add_shared(const uint32_t& word, uint32_t expected) { return add(word, expected, 0); }
  /// A word of this process only.
  bool add_private(const uint32_t& word, uint32_t expected);

  /// Sleeps until one of the words is woken or no longer has its expected value, or until `deadline_ns`
  /// (CLOCK_MONOTONIC; 0: no deadline). May return early for no reason.
  void wait(int64_t deadline_ns);
  /// Whether one of them has another value than expected by now.
  bool changed() const;

 private:
  struct Entry {  // struct futex_waitv
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
  };
  bool add(const uint32_t& word, uint32_t expected, uint32_t flags);

  std::array<Entry, kMost> entries_;
  size_t count_ = 0;
};

/// Wakes whoever waits for a word of this process. Any thread.
void wake_private(const uint32_t& word);

/// Whether the kernel knows futex_waitv (Linux 5.16 and later). Errors: kVersion, saying which kernel runs.
Status check_kernel();

}  // namespace freeride
