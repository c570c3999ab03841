// Prober: when the GPU is probed, and what the answers say: the acting thread's side of the probe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "acting/probe_page.hpp"
#include "freeride/base/wait_set.hpp"
#include "freeride/policy/lease.hpp"
#include "freeride/policy/probe.hpp"

namespace freeride::worker {

/// Belongs to the acting thread. No allocation. Where there is no probe, or it does not answer, nothing is known, and
/// nobody is accused.
class Prober {
 public:
  /// `counts` is shared with the main thread; `secret`: nobody else knows which bubbles are probed.
  Prober(const policy::ProbeLimits& limits, std::shared_ptr<ProbeCounts> counts, uint64_t secret)
      : limits_(limits), counts_(std::move(counts)), secret_(secret) {}

  /// The page of a process that has been started; null: there is none.
  void set(std::shared_ptr<ProbeMapping> mapping);
  /// A training has come or gone.
  void training_changed() { judge_.training_changed(); }

  /// Looks at the ranks, once in each look, before leases are decided. Returns the room that a probe needs before the
  /// learned end of the bubble that all of them are in; 0: none is to be made in it. `nobody`: no side task could be
  /// what it sees.
  int64_t look(const std::vector<policy::RankView>& ranks, bool nobody, int64_t now_ns);

  struct Answer {
    policy::ProbeOutcome outcome = policy::ProbeOutcome::kUnknown;
    bool came = false;
    int64_t waited_ns = 0;  ///< that the probe could not execute for
  };
  /// Asks, or takes the answer. `quiet`: nobody has a lease, and all have paused. `look_ns` is set when it has to be
  /// called again by time alone.
  Answer step(bool quiet, int64_t now_ns, int64_t& look_ns);
  void add_waits(WaitSet& waits) const;

  policy::ProbeJudge& judge() { return judge_; }
  /// Nobody may get a lease, so that it is seen what training does alone. Where no probe is to be had, never.
  bool controlling(int64_t now_ns) const { return mapping_ != nullptr && judge_.controlling(now_ns); }

 private:
  Answer take(int64_t until_ns);

  const policy::ProbeLimits limits_;
  const std::shared_ptr<ProbeCounts> counts_;
  const uint64_t secret_;
  policy::ProbeJudge judge_;
  std::shared_ptr<ProbeMapping> mapping_;

  // The bubble that all ranks are in.
  uint64_t bubble_ = 0;  // names it; 0: none
  bool chosen_ = false, held_out_ = false, done_ = false;
  int64_t end_ns_ = 0;  // learned

  bool asked_ = false;  // and not judged yet
  bool asked_held_out_ = false;
  uint64_t asked_bubble_ = 0;
  uint32_t answered_ = 0;  // the page's word, as of the last look
  int64_t until_ns_ = 0;
};

}  // namespace freeride::worker
