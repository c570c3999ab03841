#include "freeride/policy/rights.hpp"

#include <algorithm>

namespace freeride::policy {

Claim Rights::see(Claim claim, bool leased) {
  if (phase_ == Phase::kCreating && (leased || claim != Claim::kCreating)) phase_ = Phase::kLeased;
  if (phase_ == Phase::kLeased && claim == Claim::kStopping) phase_ = Phase::kStopping;
  if (phase_ == Phase::kStopping) return Claim::kStopping;
  return phase_ == Phase::kLeased && claim == Claim::kCreating ? Claim::kExecuting : claim;
}

void Rights::rest(int64_t now_ns, int64_t cpu_ns) {
  if (rests()) charge(now_ns, cpu_ns);
  rest_ns_ = now_ns;
  rest_cpu_ns_ = cpu_ns;
  free_ns_ = kToRestNs;
}

bool Rights::charge(int64_t now_ns, int64_t cpu_ns) {
  if (!rests() || cpu_ns < 0) return false;
  const int64_t executed_ns = std::max<int64_t>(0, cpu_ns - rest_cpu_ns_);
  const int64_t to_rest_ns = std::min(executed_ns, free_ns_);
  free_ns_ -= to_rest_ns;
  charged_ns_ += executed_ns - to_rest_ns;
  charged_ns_ = std::max<int64_t>(0, charged_ns_ - std::max<int64_t>(0, now_ns - rest_ns_) / kPausedShare);
  rest_ns_ = now_ns;
  rest_cpu_ns_ = cpu_ns;
  return charged_ns_ > limits_.grace_ns;
}

void Rights::wake(int64_t now_ns, int64_t cpu_ns) {
  charge(now_ns, cpu_ns);
  rest_cpu_ns_ = -1;
}

int64_t Rights::stop_execution_ns(bool ordered) const {
  return ordered ? INT64_MAX : std::max(limits_.grace_ns, limits_.stop_ns / kUnorderedShare);
}

}  // namespace freeride::policy
