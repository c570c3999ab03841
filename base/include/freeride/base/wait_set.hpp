// Waiting for any of several futex words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "freeride/base/clock.hpp"

namespace freeride {

/// A set of words, each with the value it is expected to have. Not thread-safe. No allocation.
///
/// The kernel waits for all of them at once where it has futex_waitv (Linux 5.16 and later). An older one waits for one
/// word, the *bell*: whoever changes a word that *rings* adds one to the bell afterwards, and wakes it. The other words
/// are looked at once in kLookNs.
class WaitSet {
 public:
  static constexpr size_t kMost = 128;  // the kernel's FUTEX_WAITV_MAX
  /// Without futex_waitv: how late the change of a word that does not ring may be seen.
  static constexpr int64_t kLookNs = kNsPerMs;
  /// Without futex_waitv: the longest sleep. Others may map a bell and could keep its waiter from being woken.
  static constexpr int64_t kMostSleepNs = 100 * kNsPerMs;

  void clear() { count_ = silent_ = 0; }
  /// A word on a page that other processes map, also a read-only one. False, and the word is not waited for, when full.
  bool add_shared(const uint32_t& word, uint32_t expected, bool rings = false) { return add(word, expected, 0, rings); }
  /// A word of this process only.
  bool add_private(const uint32_t& word, uint32_t expected, bool rings = false);

  /// Sleeps until one of the words is woken or no longer has its expected value, or until `deadline_ns`
  /// (CLOCK_MONOTONIC; 0: no deadline). May return early for no reason. `bell`: a shared word; null: nothing rings.
  void wait(int64_t deadline_ns, const uint32_t* bell = nullptr);
  /// Whether one of them has another value than expected by now.
  bool changed() const;

 private:
  struct Entry {  // struct futex_waitv
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
  };
  bool add(const uint32_t& word, uint32_t expected, uint32_t flags, bool rings);
  void wait_for_bell(int64_t deadline_ns, const uint32_t* bell) const;

  std::array<Entry, kMost> entries_;
  size_t count_ = 0, silent_ = 0;
};

/// Wakes whoever waits for a word of this process. Any thread.
void wake_private(const uint32_t& word);

/// Whether this process may call futex_waitv: the kernel has it, and no filter of system calls refuses it.
bool has_futex_waitv();

}  // namespace freeride
