// RankReasons: why the bubbles of each rank of the device are used or not, as far as its worker can know.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "acting/plans.hpp"
#include "daemon/trainers.hpp"
#include "freeride/policy/rank_why.hpp"

namespace freeride::worker {

/// What a rank's page says of it now; bubbles shorter than `shortest_ns` get no lease. Any bytes are read safely.
policy::RankFacts rank_facts(const freeride_bubble_page& page, int64_t shortest_ns);

/// Main thread.
class RankReasons {
 public:
  static constexpr int64_t kLatelyNs = 60'000'000'000;  ///< so long one that was harvested keeps that reason

  /// `shortest_ns`: of a lease.
  explicit RankReasons(int64_t shortest_ns) : shortest_ns_(shortest_ns) {}

  /// Side tasks have made steps in a bubble of the rank.
  void harvested(uint64_t rank, int64_t now_ns) { ranks_[rank].harvested_ns = now_ns; }
  struct Device {
    bool drained = false, has_task = false;
    const PlanSet* plans = nullptr;  ///< null: there are none
  };
  /// Judges all ranks of the device, and forgets those that are not there. Returns the ids of those whose reason or
  /// present idle phase has changed. About once a second, and when one has come.
  std::vector<uint64_t> look(const std::map<uint64_t, AttachedRank>& ranks, const Device& device, int64_t now_ns);
  /// As of the last look; kNone before the first.
  policy::RankWhy of(uint64_t rank) const;

 private:
  struct Known {
    policy::RankJudge judge;
    int64_t harvested_ns = 0;  // the last time; 0: never
    policy::RankWhy why = policy::RankWhy::kNone;
    uint64_t phase = 0;  // the number of the present one; 0: none
  };
  const int64_t shortest_ns_;
  std::map<uint64_t, Known> ranks_;
};

}  // namespace freeride::worker
