#include "freeride/policy/orders.hpp"

namespace freeride::policy {

OrderTerm term_of(int64_t sent_ns, const OrderLimits& limits) {
  return {sent_ns + limits.pause_ns, sent_ns + limits.stop_ns};
}

int64_t place_again_ns(int64_t heard_ns, const OrderLimits& limits) {
  return heard_ns + limits.pause_ns + limits.margin_ns;
}

Standing standing_of(const CopyView& copy) {
  if (!copy.live) return copy.ended ? Standing::kEnded : Standing::kUnknown;
  // A worker of an earlier version knows of no epochs: its word counts where the task is, as it did.
  if (!copy.has_epochs) return copy.here || copy.queued ? Standing::kOrdered : Standing::kSuperseded;
  if (copy.reported > copy.epoch) return Standing::kNewer;
  // An epoch is of one placement, so nobody else has it but by mistake.
  if (copy.reported < copy.epoch || !(copy.here || copy.queued)) return Standing::kSuperseded;
  return Standing::kOrdered;
}

}  // namespace freeride::policy
