#include "thaw.hpp"

#include <unistd.h>

#include <csignal>

#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::runner {
namespace {

// A process that does not say that it goes on has had no core yet, or stopped itself after it was told to go on.
constexpr int64_t kAgainNs = 5 * kNsPerMs;

}  // namespace

void freeze(Thaw& thaw, const uint32_t& word, uint32_t sequence) {
  __atomic_store_n(&thaw.frozen, sequence + 1, __ATOMIC_SEQ_CST);
  pages::futex_wake(thaw.frozen);
  // The supervisor looks at the page first, at `frozen` second: one of the two sees the other's change.
  if (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == sequence) kill(getpid(), SIGSTOP);
  pages::store_release<uint32_t>(thaw.frozen, 0);
}

void keep_thawing(const std::function<bool()>& go_on, const freeride_lease_page& lease_page, const Thaw& thaw) {
  while (pages::load_acquire(thaw.frozen) == 0) pages::futex_wait(thaw.frozen, 0, pages::kForever);
  for (;;) {
    pages::Lease lease;
    uint32_t sequence = 0;
    const bool readable = pages::read_lease(lease_page, lease, sequence);
    if (!readable) sequence = pages::load_acquire(lease_page.sequence);
    const int64_t now_ns = SteadyClock::now();
    const bool open = readable && lease.kind != FREERIDE_LEASE_NONE && as_time(lease.deadline_ns) > now_ns;
    int64_t until_ns = pages::kForever;
    const auto frozen = [&] { return __atomic_load_n(&thaw.frozen, __ATOMIC_SEQ_CST); };
    const uint32_t has_seen_it = sequence + 1;
    if ((open || (readable && lease.order == FREERIDE_ORDER_STOP)) && frozen() != has_seen_it) {
      if (!go_on()) return;
      if (const uint32_t now = frozen(); now != 0 && now != has_seen_it) until_ns = now_ns + kAgainNs;
    }
    pages::futex_wait(lease_page.sequence, sequence, until_ns, FREERIDE_WAKE_RUNNER);
  }
}

}  // namespace freeride::runner
