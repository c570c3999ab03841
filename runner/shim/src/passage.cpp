#include "passage.hpp"

#include <algorithm>

#include "freeride/base/time.hpp"

namespace freeride::shim {
namespace {

// What is not known is given so much of a lease, in bounds.
constexpr int64_t kUnknownBounds = 4;
// A lease has so many times as much left, where more may be queued. It may end before its deadline.
constexpr int64_t kEarly = 4;
// Of a lease: so much of it may have passed where something too long is tried.
constexpr int64_t kBegin = 8;
// What a plugin that is to stop may expect at each look. The supervisor bounds all of it.
constexpr int64_t kStopLookNs = kNsPerSec;

}  // namespace

Room room_of(const pages::Lease& lease, int64_t orders_until_ns, int64_t now_ns, bool plugin) {
  Room room;
  room.lease_id = lease.lease_id;
  if (plugin && lease.order == FREERIDE_ORDER_STOP) {
    room.open = true;
    room.left_ns = room.length_ns = kStopLookNs;
    return room;
  }
  // Beside training these are for a plugin's own transitions. A program has the host's part of its start then.
  const bool own = lease.kind == FREERIDE_LEASE_SAVE || lease.kind == FREERIDE_LEASE_INIT;
  if (lease.lease_id == 0 || lease.kind == FREERIDE_LEASE_NONE || (own && !plugin)) return room;
  const bool whatever = own || lease.kind == FREERIDE_LEASE_PROFILE;
  if (!whatever && lease.order == FREERIDE_ORDER_PAUSE) return room;
  const int64_t deadline_ns = as_time(lease.deadline_ns);
  const int64_t end_ns = orders_until_ns == 0 ? deadline_ns : std::min(deadline_ns, orders_until_ns);
  if (end_ns <= now_ns) return room;
  room.open = true;
  room.left_ns = end_ns - now_ns;
  room.length_ns = std::max<int64_t>(deadline_ns - std::min(sane(lease.opened_ns), now_ns), room.left_ns);
  return room;
}

int64_t weight_of(const Wish& wish, const Limits& limits) {
  if (wish.weightless) return kNsPerUs;
  return wish.expected_ns == 0 ? limits.bound_ns : wish.expected_ns;
}

int64_t bound_of(const Room& room, int64_t queued_ns, const Wish& wish, const Limits& limits) {
  const bool known = wish.expected_ns > 0 || wish.weightless;
  const bool early = known && queued_ns + weight_of(wish, limits) <= room.left_ns / kEarly;
  return early ? limits.early_bound_ns : limits.bound_ns;
}

Passage judge(const Room& room, int64_t queued_ns, const Wish& wish, bool try_due, const Limits& limits) {
  if (!room.open) return Passage::kClosed;
  const bool known = wish.expected_ns > 0 || wish.weightless;
  if (queued_ns > 0 && queued_ns + weight_of(wish, limits) > bound_of(room, queued_ns, wish, limits))
    return Passage::kFull;
  // What is not known gets half of a short lease, and a few bounds of a long one.
  const int64_t needed_ns =
      known ? weight_of(wish, limits) : std::min(kUnknownBounds * limits.bound_ns, room.length_ns / 2);
  const int64_t left_ns = room.left_ns - limits.margin_ns;
  if (queued_ns + needed_ns <= left_ns) return Passage::kPass;
  // What is queued may be done without having been looked at.
  if (queued_ns > 0) return Passage::kFull;
  return known && try_due ? Passage::kTry : Passage::kTooShort;
}

bool Trials::sees(const Room& room) {
  if (!room.open || room.lease_id == lease_id_) return false;
  lease_id_ = room.lease_id;
  lengths_[next_] = room.length_ns;
  next_ = (next_ + 1) % kRecent;
  return true;
}

void Trials::too_short(uint64_t lease_id) {
  if (lease_id == skipped_id_) return;
  skipped_id_ = lease_id;
  ++skipped_;
}

bool Trials::due(const Room& room, int64_t expected_ns) const {
  if (room.left_ns < room.length_ns - room.length_ns / kBegin) return false;
  return skipped_ >= (expected_ns > longest_ns() ? patience_ : kMostPatience);
}

void Trials::tried() {
  skipped_ = 0;
  patience_ = std::min(patience_ * 2, kMostPatience);
}

int64_t Trials::longest_ns() const {
  return *std::max_element(lengths_.begin(), lengths_.end());
}

}  // namespace freeride::shim
