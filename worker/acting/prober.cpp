#include "acting/prober.hpp"

#include <algorithm>
#include <limits>

#include "freeride/base/clock.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::worker {
namespace {

// Training posts what it does next before its bubble's mark goes: by so much, at most.
constexpr int64_t kPostedNs = kNsPerMs;
// A probe that comes later than this cannot be told from training's own work any more.
constexpr int64_t kLaunchNs = 500 * kNsPerUs;

}  // namespace

void Prober::set(std::shared_ptr<ProbeMapping> mapping) {
  mapping_ = std::move(mapping);
  asked_ = false;
}

int64_t Prober::look(const std::vector<policy::RankView>& ranks, bool nobody, int64_t now_ns) {
  uint64_t bubble = ranks.empty() ? 0 : 1;
  int64_t begin_ns = 0, end_ns = std::numeric_limits<int64_t>::max();
  bool held_out = false;
  for (const policy::RankView& rank : ranks) {
    const bool sane = rank.active && rank.wait != 0 && rank.low_ns > 0 && rank.begin_ns > 0 &&
                      rank.begin_ns <= now_ns && rank.low_ns < std::numeric_limits<int64_t>::max() - rank.begin_ns;
    if (!sane) {
      bubble = 0;
      break;
    }
    bubble = bubble * 1'000'003 + static_cast<uint64_t>(rank.begin_ns);
    begin_ns = std::max(begin_ns, rank.begin_ns);
    end_ns = std::min(end_ns, rank.begin_ns + rank.low_ns);
    held_out = held_out || (rank.plan != nullptr && policy::is_held_out(*rank.plan, rank.iteration));
  }
  if (bubble != bubble_) {
    bubble_ = bubble;
    done_ = false;
    held_out_ = held_out;
    const uint32_t one_in = limits_.one_in == 0 || judge_.wants_all(nobody) ? std::min(limits_.one_in, 1u)
                            : held_out                                      ? limits_.one_in_holdout
                                                                            : limits_.one_in;
    const bool ready = mapping_ != nullptr && pages::load_acquire(mapping_->page().ready) != 0;
    chosen_ = bubble != 0 && ready && end_ns - begin_ns >= limits_.room_ns + limits_.busy_ns &&
              policy::is_probed(secret_, bubble, one_in);
  }
  end_ns_ = end_ns;
  return chosen_ ? limits_.room_ns : 0;
}

Prober::Answer Prober::take(int64_t until_ns) {
  ProbePage& page = mapping_->page();
  const uint32_t serial = page.asked;
  policy::ProbeTimes times;
  if (pages::load_acquire(page.launched) == serial) times.launched_ns = page.launched_ns;
  if (pages::load_acquire(page.answered) == serial) {
    times.began_ns = page.began_ns;
    times.began_by_ns = page.began_by_ns;
    times.ended_ns = page.ended_ns;
    times.gap_ns = page.gap_ns;
  } else if (__atomic_load_n(&page.beats.began, __ATOMIC_ACQUIRE) != 0) {
    times.launched_ns = 0;  // it has begun, who knows when: the process that would say so is not executing
  }
  Answer answer;
  answer.came = true;
  answer.outcome = policy::judge_probe(times, until_ns, limits_.busy_ns);
  const bool began = times.began_ns != 0 && times.began_ns <= until_ns;
  if (answer.outcome == policy::ProbeOutcome::kFound)
    answer.waited_ns = std::max(times.gap_ns, (began ? times.began_ns : until_ns) - times.launched_ns);
  asked_ = false;
  const auto add = [](std::atomic<uint64_t>& count) { count.fetch_add(1, std::memory_order_relaxed); };
  if (answer.outcome == policy::ProbeOutcome::kUnknown) {
    add(counts_->unknown);
    return answer;
  }
  add(counts_->probes);
  if (asked_held_out_) add(counts_->holdout_probes);
  if (answer.outcome != policy::ProbeOutcome::kFound) return answer;
  add(counts_->findings);
  if (asked_held_out_) add(counts_->holdout_findings);
  return answer;
}

Prober::Answer Prober::step(bool quiet, int64_t now_ns, int64_t& look_ns) {
  if (mapping_ == nullptr) return {};
  ProbePage& page = mapping_->page();
  answered_ = pages::load_acquire(page.answered);
  if (asked_) {
    // It has ended early, and training may have been on the GPU for a while before it said so.
    if (bubble_ != asked_bubble_) return take(std::min(now_ns - kPostedNs, until_ns_));
    if (!quiet) return take(0);  // nothing that is said of it counts
    if (answered_ == page.asked || now_ns >= until_ns_) return take(std::min(now_ns, until_ns_));
    look_ns = until_ns_;
    return {};
  }
  if (!chosen_ || done_) return {};
  if (now_ns < end_ns_ - limits_.room_ns) {
    look_ns = end_ns_ - limits_.room_ns;
    return {};
  }
  if (now_ns > end_ns_ - limits_.busy_ns - kLaunchNs) {
    done_ = true;
    return {};
  }
  if (!quiet) {  // somebody may pause just now
    look_ns = end_ns_ - limits_.busy_ns - kLaunchNs;
    return {};
  }
  done_ = asked_ = true;
  asked_bubble_ = bubble_;
  asked_held_out_ = held_out_;
  until_ns_ = look_ns = end_ns_;
  __atomic_store_n(&page.beats.began, 0, __ATOMIC_RELEASE);
  pages::bump_and_wake(page.asked);
  return {};
}

void Prober::add_waits(WaitSet& waits) const {
  if (asked_) waits.add_shared(mapping_->page().answered, answered_);
}

}  // namespace freeride::worker
