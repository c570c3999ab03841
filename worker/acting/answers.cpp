#include "acting/answers.hpp"

#include <utility>

#include "freeride/base/time.hpp"
#include "freeride/pages/names.hpp"

namespace freeride::worker {

using pages::load_acquire;
using pages::load_relaxed;

void Answers::read() {
  sequence = load_acquire(page_.sequence);
  state = load_acquire(page_.state);
  transition = load_acquire(page_.transition);
  stops = stops || transition == FREERIDE_IN_STOP || state == FREERIDE_STATE_STOPPED;
  executing = !stops && (state == FREERIDE_STATE_RUNNING || transition != FREERIDE_IN_NONE);
}

policy::Claim Answers::claim() const {
  if (stops) return policy::Claim::kStopping;
  if (state == FREERIDE_STATE_SUBMITTED) return policy::Claim::kCreating;
  return executing ? policy::Claim::kExecuting : policy::Claim::kPaused;
}

bool Answers::take_state_change() {
  const uint32_t now = initialised() ? static_cast<uint32_t>(FREERIDE_STATE_PAUSED) : state;
  return std::exchange(told_state_, now) != now;
}

int64_t Answers::in_steps_ns(int64_t now_ns) const {
  int64_t total_ns = 0;
  for (int tries = 0; tries < 3; ++tries) {
    const uint64_t steps = load_acquire(page_.steps);
    total_ns = sane(load_acquire(page_.step_ns));
    const int64_t since_ns = sane(load_acquire(page_.transition_ns));
    if (load_acquire(page_.transition) == FREERIDE_IN_STEP && since_ns < now_ns) total_ns += now_ns - since_ns;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (load_relaxed(page_.steps) == steps) break;
  }
  return total_ns;
}

const char* state_name(uint32_t state) {
  const char* name = pages::state_name(state);
  return *name != '\0' ? name : pages::state_name(FREERIDE_STATE_PAUSED);
}

}  // namespace freeride::worker
