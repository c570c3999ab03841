#include "freeride/policy/heartbeat.hpp"

namespace freeride::policy {

int64_t next_heartbeat_ns(int64_t now_ns, int64_t phase_ns, int64_t period_ns) {
  const int64_t since_ns = (now_ns - phase_ns) % period_ns;
  return now_ns - since_ns + (since_ns < 0 ? 0 : period_ns);
}

}  // namespace freeride::policy
