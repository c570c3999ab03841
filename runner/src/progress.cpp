#include "progress.hpp"

#include "freeride/policy/profile_plan.hpp"

namespace freeride::runner {

void Progress::step_made(freeride_status status, int64_t took_ns) {
  if (job_.profile && durations_ns_.size() < FREERIDE_PROFILE_MOST_SAMPLES) durations_ns_.push_back(took_ns);
  if (status == FREERIDE_FINISHED || (job_.steps != 0 && steps() >= job_.steps)) {
    done_ = true;
    answer_.finished();
  }
  if (job_.profile && seen_enough(false)) done_ = true;
}

void Progress::workload_ended() {
  done_ = whole_ = true;
  answer_.finished();
}

bool Progress::seen_enough(bool imperative) const {
  policy::ProfileProgress progress;
  progress.steps = answer_.steps();
  progress.executed_ns = answer_.step_ns();
  progress.wanted_steps = job_.steps;
  progress.imperative = imperative;
  progress.warm_up = policy::warm_up_steps(durations_ns_);
  return policy::profile_is_enough(progress);
}

std::string Progress::reason(bool imperative) const {
  if (made_all_steps()) return "did its " + std::to_string(job_.steps) + " steps";
  if (!job_.profile || whole_) return "its work is done";
  return done_ && !seen_enough(imperative) ? "its work is done" : "profiled";
}

}  // namespace freeride::runner
