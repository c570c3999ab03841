// Probe: does anything of a side task execute on a GPU while nobody has a lease? A probe is a kernel of one warp, in a
// context outside of all side tasks' MPS servers, launched while training has nothing posted: where another context can
// execute, the GPU slices its time between the two, and the warp begins late or sees gaps in its own execution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace freeride::policy {

struct ProbeLimits {
  uint32_t one_in = 32;         ///< of the bubbles that are long enough, so many are probed, chosen at random
  uint32_t one_in_holdout = 8;  ///< of those in held-out iterations: they are what side tasks' cost is measured against
  int64_t room_ns = 2'500'000;  ///< before the bubble's learned end; a lease ends so much earlier
  /// Later than this, or stopped for longer, is a finding. Measured (H200, driver 580): where nothing else executes a
  /// probe begins within 0.15 ms and has no gap; beside a kernel that never ends, work queued ahead, or a graph that
  /// launches itself it begins after 2.4 ms, a time slice.
  int64_t busy_ns = 1'000'000;
};

/// Whether a bubble is probed, by what nobody else knows (`secret`) and what names the bubble. `one_in` 0: never. Pure.
bool is_probed(uint64_t secret, uint64_t bubble, uint32_t one_in);

/// What is known of one probe. CLOCK_MONOTONIC, ns; 0: not yet.
struct ProbeTimes {
  int64_t launched_ns = 0;
  int64_t began_ns = 0, began_by_ns = 0;  ///< on the GPU: not before, and not after
  int64_t ended_ns = 0;                   ///< not after
  int64_t gap_ns = 0;                     ///< the longest that it did not execute in between
};

enum class ProbeOutcome { kUnknown, kClean, kFound };

/// `until_ns`: from then on the GPU may have been training's. A probe that has not begun by then is a finding only
/// where it has waited long enough; what cannot be told is unknown, never found. Pure.
ProbeOutcome judge_probe(const ProbeTimes& times, int64_t until_ns, int64_t busy_ns);

/// A side task that has had a lease since the last clean probe.
struct ProbeSuspect {
  uint64_t content = 0;      ///< names its plugin's content
  uint64_t last_served = 0;  ///< serial number of its last lease
};

/// Who has to go after a row of findings. Keeps what it has learned of this GPU's training; allocates nothing.
class ProbeJudge {
 public:
  static constexpr size_t kNobody = SIZE_MAX;
  /// What a suspect that had to go has left may be on the GPU for a while: its MPS server takes it off.
  static constexpr int64_t kGoneNs = 2'000'000'000;
  struct Decision {
    size_t victim = kNobody;  ///< index among the suspects
    bool guilty = false;      ///< it has gone before, and the GPU was clean at once; else nothing is proven yet
  };

  /// Notes an outcome. A row of needed() findings, with none clean between, makes the suspect that was served last go.
  /// Once it has gone and a probe is clean, its content is guilty when it comes to that again; findings in the kGoneNs
  /// before that tell nothing. Where findings go on with no suspect left, they are training's own work in its bubbles,
  /// and more are needed from then on.
  Decision note(ProbeOutcome outcome, std::span<const ProbeSuspect> suspects, int64_t now_ns);

  /// Findings in a row that it takes: at least 3, and so many that training's own work makes such a row less often than
  /// once in a million probes, by the share of findings that clean probes have disproved. 0: it cannot be told here.
  uint32_t needed() const;
  uint32_t row() const { return row_; }
  /// Every bubble is to be probed: there are findings that are neither proven nor disproved.
  bool suspicious() const { return row_ > 0 || evicted_ != 0; }
  /// Another training: what was learned of the last one's bubbles holds no more.
  void training_changed();

 private:
  static constexpr size_t kMostGuilty = 16;
  bool is_guilty(uint64_t content) const;

  uint32_t row_ = 0;
  uint64_t probes_ = 0, disproved_ = 0;  // known outcomes; findings that were nobody's
  uint64_t evicted_ = 0;                 // content that has gone, until it is known what that changed; 0: none
  int64_t evicted_ns_ = 0;
  uint64_t guilty_[kMostGuilty] = {};
  size_t next_guilty_ = 0;
};

}  // namespace freeride::policy
