#include "credit.hpp"

#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "freeride/base/clock.hpp"

namespace freeride::shim {
namespace {

constexpr int64_t kFirstNs = 10 * kNsPerMs;
// A virtual machine that moves to another host may have another rate there.
constexpr int64_t kAnewNs = kNsPerSec;
constexpr double kAgree = 0.01;

}  // namespace

bool ticks_are_steady() {
#if defined(__x86_64__)
  constexpr unsigned kPower = 0x80000007, kInvariant = 1u << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPower, &a, &b, &c, &d) != 0 && (d & kInvariant) != 0;
#elif defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

void TickRate::note(int64_t now_ns, uint64_t ticks) {
  if (noting_.exchange(true, std::memory_order_acquire)) return;
  const int64_t passed_ns = now_ns - begin_ns_;
  const bool known = per_ns_.load(std::memory_order_relaxed) > 0;
  const bool begins = begin_ns_ == 0 || passed_ns < 0 || ticks < begin_ticks_;
  if (begins) {
    last_ = 0;
    per_ns_.store(0, std::memory_order_relaxed);
  } else if (passed_ns >= (known ? kAnewNs : kFirstNs)) {
    const double rate = static_cast<double>(ticks - begin_ticks_) / static_cast<double>(passed_ns);
    const bool agrees = std::abs(rate - last_) <= kAgree * last_;
    per_ns_.store(agrees ? rate : 0, std::memory_order_relaxed);
    last_ = rate;
  }
  if (begins || passed_ns >= (known ? kAnewNs : kFirstNs)) {
    begin_ns_ = now_ns;
    begin_ticks_ = ticks;
  }
  noting_.store(false, std::memory_order_release);
}

}  // namespace freeride::shim
