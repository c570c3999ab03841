#include "freeride/policy/remote_wait.hpp"

#include <algorithm>

namespace freeride::policy {

Arm arm_of(uint64_t iteration, uint64_t plain_until) {
  if (iteration < std::max(ArmPlan::kFirstPlain, plain_until)) return Arm::kPlain;
  const uint64_t place = iteration % ArmPlan::kPeriod;
  if (place < ArmPlan::kEach) return Arm::kPlain;
  return place < 2 * ArmPlan::kEach ? Arm::kHeld : Arm::kLeased;
}

bool is_timed(uint64_t iteration, uint64_t plain_until) {
  return iteration > std::max(ArmPlan::kFirstPlain, plain_until) &&
         arm_of(iteration, plain_until) == arm_of(iteration - 1, plain_until);
}

bool may_hold_remotely(const RemoteBatch& batch) {
  return batch.one_rank && batch.needed_at_once && batch.receives == 1 &&
         (batch.sends == 0 || (batch.sends == 1 && batch.mirrored));
}

int64_t RemoteWaits::shortest_ns(const RemoteSample& wait) const {
  const auto of = [&](bool sends) -> int64_t {
    const auto found = shortest_.find({wait.peer, sends, wait.bytes});
    return found == shortest_.end() ? INT64_MAX : found->second;
  };
  // What goes both ways at the same time takes no less than one way alone: where only such were short, they tell of the
  // others as well. Not the other way round.
  return wait.sends ? of(true) : std::min(of(false), of(true));
}

bool RemoteWaits::add_iteration(std::span<const RemoteSample> waits) {
  std::vector<int64_t> ends;
  bool other = !known_.empty() && known_.size() != waits.size();
  for (size_t i = 0; i < waits.size(); ++i) {
    const RemoteSample& wait = waits[i];
    // Its place in the iteration is another wait's: nothing that was learned is of it.
    if (i < known_.size()) {
      const RemoteSample& before = known_[i];
      other = other || before.remote != wait.remote || before.peer != wait.peer || before.bytes != wait.bytes ||
              before.sends != wait.sends;
    }
    ends.push_back(wait.remote ? wait.elapsed_ns : 0);
  }
  if (other) forget();
  known_.assign(waits.begin(), waits.end());
  for (const RemoteSample& wait : waits) {
    if (!wait.remote || wait.elapsed_ns <= 0) continue;
    const Kind kind{wait.peer, wait.sends, wait.bytes};
    const auto found = shortest_.find(kind);
    if (found != shortest_.end()) {
      found->second = std::min(found->second, wait.elapsed_ns);
    } else if (shortest_.size() < kMostKinds) {
      shortest_.emplace(kind, wait.elapsed_ns);
    }
  }
  const bool changed = learner_.add_iteration(ends);
  ++iterations_;
  for (const RemoteSample& wait : waits) {
    if (wait.remote && wait.elapsed_ns > 0) holdable_ns_ += std::max<int64_t>(0, wait.elapsed_ns - shortest_ns(wait));
  }
  return changed || other;
}

int64_t RemoteWaits::ceiling_ns(size_t wait, uint32_t peer, uint64_t bytes, bool sends, bool hinted) const {
  if (wait == 0 || wait > known_.size()) return 0;
  const RemoteSample& known = known_[wait - 1];
  if (!known.remote || known.peer != peer || known.bytes != bytes || known.sends != sends) return 0;
  const WaitLength end = learner_.length(wait);
  const int64_t shortest = shortest_ns(known);
  if (end.samples < kLeastSamples || shortest >= end.low_ns) return 0;
  return std::max<int64_t>(0, end.low_ns - shortest - (hinted ? kHintedLeadNs : kLeadNs));
}

void RemoteWaits::forget() {
  learner_ = LengthLearner(learner_.most_waits());
  known_.clear();
}

}  // namespace freeride::policy
