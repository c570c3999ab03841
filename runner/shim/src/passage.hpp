// The judgement at the gate: may this submission pass now? Plain functions of what is known, without clock or driver.
#pragma once

#include <array>
#include <cstdint>

#include "freeride/pages/mapping.hpp"
#include "limits.hpp"

namespace freeride::shim {

/// What the lease page leaves at a moment.
struct Room {
  bool open = false;
  uint64_t lease_id = 0;
  int64_t left_ns = 0;    ///< until the deadline
  int64_t length_ns = 0;  ///< of the whole lease
};

/// What a lease says at `now_ns`. `orders_until_ns` on the same clock, 0: orders do not expire. Init and profile leases
/// are given whatever the standing order is. Under a save lease nothing of a program passes. A plugin's SaveState and
/// StopSideTask may need the GPU: of a `plugin` work passes under a save lease, and once it is to stop.
Room room_of(const pages::Lease& lease, int64_t orders_until_ns, int64_t now_ns, bool plugin);

/// What asks to pass.
struct Wish {
  int64_t expected_ns = 0;  ///< on the GPU; 0: not known
  bool weightless = false;  ///< it is no work: a wait or a write of one word
  bool more = false;        ///< more of the kind may be on credit
};

enum class Passage {
  kPass,
  kTry,       ///< passes though it is longer than the rest of the lease: no lease was ever long enough
  kFull,      ///< waits until something that is queued is done
  kTooShort,  ///< waits for another lease
  kClosed,    ///< waits for a lease
};

/// How much may be queued, ns: more while the lease has several times as much left as there is with this.
int64_t bound_of(const Room& room, int64_t queued_ns, const Wish& wish, const Limits& limits);

/// What a submission that passes adds to the queue. Of one that is not known: as much as lets no other pass beside it.
int64_t weight_of(const Wish& wish, const Limits& limits);

/// `queued_ns`: weights of what is not done. `try_due`: Trials says so.
Passage judge(const Room& room, int64_t queued_ns, const Wish& wish, bool try_due, const Limits& limits);

/// How long recent leases were, and when something longer than they are is tried all the same: as seldom as StepFit
/// tries a step. Not thread-safe.
class Trials {
 public:
  static constexpr uint32_t kPatience = 4;        ///< leases skipped before the first try
  static constexpr uint32_t kMostPatience = 128;  ///< between two tries, after several that were wrong
  static constexpr uint32_t kRecent = 32;         ///< leases that are remembered

  /// A lease was seen. True: it is another one than the last.
  bool sees(const Room& room);
  /// Something that takes `expected_ns` waits for a longer lease than this one. Counts each lease once.
  void too_short(uint64_t lease_id);
  /// May it be tried in this lease? Only at its begin.
  bool due(const Room& room, int64_t expected_ns) const;
  /// It is tried.
  void tried();
  int64_t longest_ns() const;

 private:
  std::array<int64_t, kRecent> lengths_{};
  uint32_t next_ = 0;
  uint64_t lease_id_ = 0, skipped_id_ = 0;
  uint32_t skipped_ = 0, patience_ = kPatience;
};

}  // namespace freeride::shim
