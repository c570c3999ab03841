// Waits for a rank on another host: in which iterations nothing is held, and until when the host may hold a receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "freeride/policy/length_learner.hpp"

namespace freeride::policy {

/// What is done in an iteration. The same on all ranks, for it follows from the iteration's number alone.
enum class Arm : uint8_t {
  kPlain,   ///< nothing is held, no leases: training as it would be without the hook. What is learned is learned here
  kHeld,    ///< held, no leases: with the plain ones it tells what holds cost
  kLeased,  ///< held, with leases
};

struct ArmPlan {
  static constexpr uint64_t kFirstPlain = 24;  ///< all iterations at first, and after a change of the schedule
  static constexpr uint64_t kPeriod = 48;      ///< of iterations: the first two are plain, the next two without leases
  static constexpr uint64_t kEach = 2;         ///< of which the first still has some of the one before: it is not timed
};

/// The arm of `iteration`, from 0. `plain_until`: those before it are plain (after a change of the schedule; ranks tell
/// each other). Pure; any thread.
Arm arm_of(uint64_t iteration, uint64_t plain_until);
/// Whether its duration may be compared with others': the iteration before is of the same arm. Pure; any thread.
bool is_timed(uint64_t iteration, uint64_t plain_until);

/// One wait of a plain iteration.
struct RemoteSample {
  bool remote = false;     ///< the rest is of remote waits only
  uint32_t peer = 0;       ///< whose messages
  uint64_t bytes = 0;      ///< of them
  bool sends = false;      ///< the batch also sends, to the same rank
  int64_t elapsed_ns = 0;  ///< from when training's stream came to it until it had been received; 0: not measured
};

/// A batch that receives from a rank on another host, as the host sees it before it posts it.
struct RemoteBatch {
  size_t receives = 0, sends = 0;  ///< messages
  bool one_rank = false;           ///< all of them are from and to the same one
  bool needed_at_once = false;     ///< training's stream waits for it next
  bool mirrored =
      false;  ///< the batch that it receives from receives just what it sends; means nothing if it sends none
};

/// Whether the host may hold it, hints having been sent for what it sends. At most one message each way, with one rank:
/// of several, its peer may need the first before it comes to the next one, or another rank may need what is held with
/// them. One that also sends only where its peer waits in the same batch: neither could end before the other is posted.
/// Then a hint always comes where the message would have, and no rank ever waits for another's ceiling;
/// hooks/tests/model shows that, and that it is so no longer with a rule broken. Pure; any thread.
bool may_hold_remotely(const RemoteBatch& batch);

/// How long a wait for a rank on another host may be held by the host: until shortly before the data exists there. A
/// receive's end is that plus its transfer, and the transfer must not be held: so the shortest receive of that rank and
/// size is taken off, which may have been longer than a transfer, never shorter. Fed by plain iterations only. So no
/// hold can lengthen what it is measured by; learned from held iterations, each length would be longer than the last.
/// Pure: no clock, no I/O. Not thread-safe. Allocates when the number of waits, or of (rank, size), grows.
class RemoteWaits {
 public:
  /// So long before it the receive is posted, and the lease has ended. Where the sender's hints come, one ends a hold
  /// that would be too long: then the lead is only as long as posting takes.
  static constexpr int64_t kLeadNs = 1'000'000;
  static constexpr int64_t kHintedLeadNs = 100'000;
  static constexpr uint32_t kLeastSamples = 6;  ///< before anything is held
  static constexpr size_t kMostKinds = 256;     ///< of (rank, size, sends); what is beyond them is not held

  explicit RemoteWaits(size_t most_waits) : learner_(most_waits) {}

  /// One plain iteration, a sample for each of its waits in order. True when the schedule has changed.
  bool add_iteration(std::span<const RemoteSample> waits);
  /// Until how long after training's stream has come to wait `wait` (from 1) the host may hold it; 0: hold nothing.
  /// It must be the wait that was learned: of that rank, of that size. `hinted`: hints of that rank come at present.
  int64_t ceiling_ns(size_t wait, uint32_t peer, uint64_t bytes, bool sends, bool hinted = false) const;
  /// What was seen of a wait last; null: nothing.
  const RemoteSample* known(size_t wait) const {
    return wait == 0 || wait > known_.size() ? nullptr : &known_[wait - 1];
  }
  /// The time until the data existed in all remote waits of plain iterations, hinted or not, and how many those are.
  int64_t holdable_ns() const { return holdable_ns_; }
  uint64_t iterations() const { return iterations_; }
  /// Everything is to be learned anew, but for how long transfers take.
  void forget();

 private:
  struct Kind {
    uint32_t peer = 0;
    bool sends = false;
    uint64_t bytes = 0;
    auto operator<=>(const Kind&) const = default;  // NOLINT(modernize-use-nullptr): of the tool, not of this
  };
  int64_t shortest_ns(const RemoteSample& wait) const;

  LengthLearner learner_;
  std::vector<RemoteSample> known_;   // of each wait, as of the last iteration
  std::map<Kind, int64_t> shortest_;  // receive
  int64_t holdable_ns_ = 0;
  uint64_t iterations_ = 0;
};

}  // namespace freeride::policy
