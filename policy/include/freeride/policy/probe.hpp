// Probe: does anything of a side task execute on a GPU while nobody has a lease? A probe is a kernel of one warp, in a
// context outside of all side tasks' MPS servers. It is launched while training has nothing posted. If another context
// executes, the GPU slices its time between the two: the warp begins late, or sees gaps in its own execution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace freeride::policy {

struct ProbeLimits {
  uint32_t one_in = 32;  ///< of the bubbles that are long enough, so many are probed, chosen at random
  /// Of those in baseline iterations: they are what side tasks' cost is measured against.
  uint32_t one_in_holdout = 8;
  int64_t room_ns = 2'500'000;  ///< before the bubble's learned end; a lease ends so much earlier
  /// Later than this, or stopped for longer, is a finding. Measured (H200, driver 580): alone, a probe begins within
  /// 0.15 ms and has no gap. It begins after 2.4 ms, a time slice, beside a kernel that never ends, work queued ahead,
  /// or a graph that launches itself.
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

/// `until_ns`: from then on the GPU may have been training's. A probe that has not begun by then is a finding only if
/// it has waited long enough. What cannot be told is unknown, never found. Pure.
ProbeOutcome judge_probe(const ProbeTimes& times, int64_t until_ns, int64_t busy_ns);

/// A side task with a process that has had a lease.
struct ProbeSuspect {
  uint64_t content = 0;      ///< names its plugin's content
  uint64_t last_served = 0;  ///< serial number of its last lease
};

/// Which task is taken off after a row of findings. Keeps what it has learned of this GPU's training; allocates
/// nothing.
///
/// Findings may be training's own work. How often they are is learned from *controls* alone: probes made while no side
/// task can be what they see. A probe beside a task tells nothing of training, since the task may have arranged its
/// outcome.
///
/// The task that was served last is taken off first, which proves nothing. Then nobody gets a lease for kControls
/// probes. If these are clean, the content is marked. The next time it is taken off for good, after a row that training
/// alone makes once in a million probes. That rate is the upper end of what the controls say.
class ProbeJudge {
 public:
  static constexpr size_t kNobody = SIZE_MAX;
  static constexpr uint32_t kControls = 48;  ///< all clean: training makes a finding in 6 % of probes at most
  /// What a suspect has left may be on the GPU for a while, until its MPS server takes it off.
  static constexpr int64_t kGoneNs = 2'000'000'000;
  static constexpr int64_t kControlNs = 60'000'000'000;  ///< and what there is of controls by then has to do
  struct Decision {
    size_t victim = kNobody;  ///< index among the suspects
    bool guilty = false;      ///< it has gone before, and the GPU was quiet then; else nothing is proven yet
    uint32_t row = 0;         ///< findings in a row that it goes for
  };

  /// Notes an outcome. `suspects`: all there are; empty: it is a control.
  Decision note(ProbeOutcome outcome, std::span<const ProbeSuspect> suspects, int64_t now_ns);

  /// Nobody may get a lease: controls are made. From an eviction until there are kControls, or kControlNs have passed.
  bool controlling(int64_t now_ns) const { return evicted_ != 0 && now_ns - evicted_ns_ < kControlNs; }
  /// Every bubble is to be probed. `nobody`: there is no suspect.
  bool wants_all(bool nobody) const { return row_ > 0 || evicted_ != 0 || (nobody && controls_ < kControls); }

  /// Findings in a row that take somebody off, at least 3, by what is expected of training; 0: nobody can be told from
  /// it.
  uint32_t row_to_go() const;
  /// Those that prove something; 0: it cannot be told here.
  uint32_t row_of_proof() const;
  /// Another training: what was learned of the last one's bubbles holds no more.
  void training_changed();

 private:
  static constexpr size_t kMostMarked = 16;
  bool is_marked(uint64_t content) const;
  void end_control();
  Decision evict(std::span<const ProbeSuspect> suspects, size_t victim, bool guilty, int64_t now_ns);

  uint32_t row_ = 0;
  uint32_t controls_ = 0, own_ = 0;  // known outcomes of controls; findings among them
  uint64_t evicted_ = 0;             // content that has gone, while controls are made; 0: none are
  int64_t evicted_ns_ = 0;
  uint32_t to_make_ = 0;  // controls still to be made
  uint64_t marked_[kMostMarked] = {};
  size_t next_marked_ = 0;
};

}  // namespace freeride::policy
