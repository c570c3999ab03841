#include "held_lease.hpp"

namespace freeride::runner {

SeenLease HeldLease::read() const {
  SeenLease seen;
  seen.readable = pages::read_lease(page_, seen.lease, seen.sequence);
  if (!seen.readable) seen.sequence = pages::load_acquire(page_.sequence);
  return seen;
}

bool HeldLease::follow() {
  pages::Lease changed;
  const bool readable = pages::read_lease(page_, changed, sequence_);
  look();
  if (!readable || changed.lease_id == 0 || changed.kind != held_.kind) return false;
  if (changed.order == FREERIDE_ORDER_STOP || as_time(changed.deadline_ns) <= now_ns_) return false;
  // The init and profile leases are given whatever the standing order is.
  if (changed.kind != FREERIDE_LEASE_PROFILE && changed.order != FREERIDE_ORDER_RUN) return false;
  held_ = changed;
  answer_.works_under(held_.lease_id);
  return true;
}

}  // namespace freeride::runner
