#include "freeride/base/futex_waitv.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

#include "freeride/base/time.hpp"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449  // the same on every architecture
#endif

namespace freeride {
namespace {

// <linux/futex.h> of newer kernels: FUTEX2_SIZE_U32 and FUTEX2_PRIVATE.
constexpr uint32_t kSize32 = 2;
constexpr uint32_t kPrivate = 128;

}  // namespace

bool WaitSet::add(const uint32_t& word, uint32_t expected, uint32_t flags) {
  if (count_ == kMost) return false;
  entries_[count_++] = Entry{expected, reinterpret_cast<uint64_t>(&word), kSize32 | flags, 0};
  return true;
}

bool WaitSet::add_private(const uint32_t& word, uint32_t expected) {
  return add(word, expected, kPrivate);
}

void WaitSet::wait(int64_t deadline_ns) {
  const timespec until = as_timespec(deadline_ns);
  syscall(SYS_futex_waitv, entries_.data(), count_, 0, deadline_ns > 0 ? &until : nullptr, CLOCK_MONOTONIC);
}

bool WaitSet::changed() const {
  for (size_t i = 0; i < count_; ++i) {
    const auto* word = reinterpret_cast<const uint32_t*>(entries_[i].address);
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != static_cast<uint32_t>(entries_[i].value)) return true;
  }
  return false;
}

void wake_private(const uint32_t& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Status check_kernel() {
  const uint32_t word = 1;
  Result<void> fine;
  struct {
    uint64_t value = 0, address = 0;
    uint32_t flags = kSize32, reserved = 0;
  } entry;
  entry.address = reinterpret_cast<uint64_t>(&word);
  // The value differs, so a kernel that knows the call says EAGAIN at once.
  if (syscall(SYS_futex_waitv, &entry, 1, 0, nullptr, CLOCK_MONOTONIC) == 0 || errno == EAGAIN) return {};
  utsname name{};
  uname(&name);
  return Error{Code::kVersion, std::string("kernel ") + name.release + " has no futex_waitv",
               "run the worker on Linux 5.16 or later"};
}

}  // namespace freeride
