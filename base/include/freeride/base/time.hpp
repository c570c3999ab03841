// Times as they come from elsewhere, and as they are told.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#include "freeride/base/clock.hpp"

namespace freeride {

/// A time or length off a page, as a signed number that can be added up: centuries become 0, "not known" everywhere.
constexpr int64_t sane(uint64_t ns) {
  return ns <= static_cast<uint64_t>(INT64_MAX / 4) ? static_cast<int64_t>(ns) : 0;
}

/// A point in time off a page, such as a deadline: what is too late to be told is the latest.
constexpr int64_t as_time(uint64_t ns) {
  return ns > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(ns);
}

/// For system calls; `ns` is not negative.
constexpr timespec as_timespec(int64_t ns) {
  return {ns / kNsPerSec, ns % kNsPerSec};
}

/// What `clock` shows, such as a thread's CPU clock; -1: there is no such clock (any more). Async-signal-safe.
inline int64_t clock_ns(clockid_t clock) {
  timespec time{};
  return clock_gettime(clock, &time) == 0 ? time.tv_sec * kNsPerSec + time.tv_nsec : -1;
}

/// "12 ms", "0.4 ms": for people, to a tenth.
inline std::string milliseconds(int64_t ns) {
  const int64_t tenths = (ns + kNsPerMs / 20) / (kNsPerMs / 10);
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " ms";
}

}  // namespace freeride
