#include "daemon/rank_reasons.hpp"

#include <utility>

#include "daemon/phase_name.hpp"

namespace freeride::worker {

policy::RankFacts rank_facts(const freeride_bubble_page& page, int64_t shortest_ns) {
  const auto lengths = pages::learned_lengths(page);
  policy::RankFacts facts;
  const uint32_t hook = pages::load_acquire(page.hook_state);
  if (hook == FREERIDE_HOOK_GONE) facts.hook = policy::RankFacts::Hook::kGone;
  if (hook == FREERIDE_HOOK_DISABLED) facts.hook = policy::RankFacts::Hook::kOff;
  facts.iterations = pages::load_acquire(page.iteration);
  facts.bubbles = pages::load_acquire(page.bubbles);
  facts.samples = lengths.samples;
  facts.usable = lengths.longest_ns >= static_cast<uint64_t>(shortest_ns);
  facts.noted = pages::load_relaxed(page.noted);
  return facts;
}

std::vector<uint64_t> RankReasons::look(const std::map<uint64_t, AttachedRank>& ranks, const Device& device,
                                        int64_t now_ns) {
  std::erase_if(ranks_, [&](const auto& known) { return ranks.count(known.first) == 0; });
  std::vector<uint64_t> changed;
  for (const auto& [id, rank] : ranks) {
    Known& known = ranks_[id];
    const auto facts = rank_facts(*rank.source->page, shortest_ns_);
    policy::DeviceFacts beside;
    beside.drained = device.drained;
    beside.harvested = known.harvested_ns != 0 && now_ns - known.harvested_ns < kLatelyNs;
    beside.has_task = device.has_task;
    beside.shares_device = ranks.size() > 1;
    if (device.plans != nullptr) {
      const auto* plan = PlanSet::at(device.plans->of(rank.identity.job), facts.iterations);
      if (plan != nullptr) beside.duty_pct = plan->duty_pct;
    }
    const auto why = policy::with_device(known.judge.judge(facts), beside);
    const auto phase = present_phase(*rank.source->page, now_ns);
    const uint64_t number = phase ? phase->number : 0;
    const bool other_phase = std::exchange(known.phase, number) != number;
    if (std::exchange(known.why, why) != why || other_phase) changed.push_back(id);
  }
  return changed;
}

policy::RankWhy RankReasons::of(uint64_t rank) const {
  const auto known = ranks_.find(rank);
  return known == ranks_.end() ? policy::RankWhy::kNone : known->second.why;
}

}  // namespace freeride::worker
