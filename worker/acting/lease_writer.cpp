#include "acting/lease_writer.hpp"

#include <algorithm>

#include "freeride/base/clock.hpp"

namespace freeride::worker {
namespace {

using pages::load_relaxed;
using policy::LeaseKind;

// How long the supervisor may not know of a lease that was opened or taken back. Beyond the kernel's next tick, as
// Actor::kStartNs: after most leases nobody has to be told in the end, and then the timer has cost nothing.
constexpr int64_t kTellAfterNs = 5 * kNsPerMs;

static_assert(static_cast<uint32_t>(LeaseKind::kNone) == FREERIDE_LEASE_NONE &&
              static_cast<uint32_t>(LeaseKind::kBubble) == FREERIDE_LEASE_BUBBLE &&
              static_cast<uint32_t>(LeaseKind::kInit) == FREERIDE_LEASE_INIT &&
              static_cast<uint32_t>(LeaseKind::kProfile) == FREERIDE_LEASE_PROFILE &&
              static_cast<uint32_t>(LeaseKind::kIdle) == FREERIDE_LEASE_IDLE &&
              static_cast<uint32_t>(LeaseKind::kSave) == FREERIDE_LEASE_SAVE);

}  // namespace

LeaseWriter::LeaseWriter(TaskSource& source, const Answers& answers, int64_t grace_ns, int64_t hang_ns)
    : source_(source), answers_(answers) {
  lease_.order = load_relaxed(source_.lease->order);
  lease_.grace_ns = static_cast<uint64_t>(grace_ns);
  lease_.hang_ns = static_cast<uint64_t>(hang_ns);
}

void LeaseWriter::write(int64_t now_ns, int64_t tell_after_ns) {
  pages::write_lease(*source_.lease, lease_);
  pages::futex_wake(source_.lease->sequence, FREERIDE_WAKE_RUNNER);
  const int64_t tell_at_ns = now_ns + tell_after_ns;
  tell_at_ns_ = tell_at_ns_ == 0 ? tell_at_ns : std::min(tell_at_ns_, tell_at_ns);
  tell_supervisor(now_ns);
}

int64_t LeaseWriter::tell_supervisor(int64_t now_ns) {
  // Paused without a lease: there is nothing to enforce.
  const bool nothing = kind() == LeaseKind::kNone && !answers_.executing && lease_.order != FREERIDE_ORDER_STOP;
  if (tell_at_ns_ == 0 || nothing) return tell_at_ns_ = 0;
  if (now_ns < tell_at_ns_) return tell_at_ns_;
  pages::futex_wake(source_.lease->sequence, FREERIDE_WAKE_SUPERVISOR);
  return tell_at_ns_ = 0;
}

bool LeaseWriter::set_order(uint32_t order, int64_t now_ns) {
  if (order == lease_.order) return false;
  lease_.order = order;
  if (order == FREERIDE_ORDER_STOP && kind() != LeaseKind::kNone) {
    lease_.kind = FREERIDE_LEASE_NONE;
    lease_.deadline_ns = static_cast<uint64_t>(now_ns);
  }
  write(now_ns, 0);
  return true;
}

void LeaseWriter::open(LeaseKind kind, int64_t deadline_ns, int64_t begin_ns, int64_t now_ns) {
  source_.leased.store(true, std::memory_order_relaxed);
  lease_.kind = static_cast<uint32_t>(kind);
  lease_.lease_id += 1;
  lease_.deadline_ns = static_cast<uint64_t>(deadline_ns);
  lease_.opened_ns = static_cast<uint64_t>(now_ns);
  lease_.begin_ns = static_cast<uint64_t>(begin_ns);
  lease_.iteration = kind == LeaseKind::kBubble ? iteration_ : 0;
  if (kind == LeaseKind::kSave) {
    save_wanted_ = false;
    source_.save_lease.store(lease_.lease_id);  // before the runner can answer it
  }
  write(now_ns, policy::is_own(kind) ? 0 : kTellAfterNs);
  skipped_at_open_ = load_relaxed(answers_.page().skipped);
  if (policy::is_own(kind)) {
    initialised_ = true;
    return;
  }
  if (kind == LeaseKind::kBubble) source_.in_bubbles.store(true, std::memory_order_relaxed);
  source_.leases.fetch_add(1, std::memory_order_relaxed);
}

void LeaseWriter::close(int64_t now_ns, bool taken_up) {
  // One that got no processor to take its init lease up is to have another: it has not executed, and does not say so.
  const bool unused = policy::is_own(kind()) && !taken_up && answers_.state == FREERIDE_STATE_CREATED &&
                      answers_.transition == FREERIDE_IN_NONE;
  if (unused) initialised_ = false;
  lease_.kind = FREERIDE_LEASE_NONE;
  lease_.deadline_ns = static_cast<uint64_t>(now_ns);
  write(now_ns, kTellAfterNs);
}

bool LeaseWriter::given_back() const {
  if (!for_steps() || answers_.executing) return false;
  const freeride_answer_page& answer = answers_.page();
  const bool paused_again =
      load_relaxed(answer.lease_id) == lease_.lease_id && load_relaxed(answer.last_paused_ns) >= lease_.opened_ns;
  return paused_again || load_relaxed(answer.skipped) != skipped_at_open_;
}

LeaseKind LeaseWriter::wanted(bool paused) const {
  if (kind() != LeaseKind::kNone) return LeaseKind::kNone;
  const bool to_pause = lease_.order == FREERIDE_ORDER_PAUSE || lease_.order == FREERIDE_ORDER_END;
  if (save_wanted_ && to_pause && paused && answers_.state == FREERIDE_STATE_PAUSED && !answers_.executing)
    return LeaseKind::kSave;
  const bool ordered = lease_.order == FREERIDE_ORDER_RUN || (init_paused_ && to_pause);
  if (initialised_ || !ordered || answers_.state != FREERIDE_STATE_CREATED) return LeaseKind::kNone;
  return source_.profile ? LeaseKind::kProfile : LeaseKind::kInit;
}

bool LeaseWriter::own_done() const {
  if (answers_.transition != FREERIDE_IN_NONE) return false;
  if (kind() == LeaseKind::kSave) return load_relaxed(answers_.page().saved_lease) == lease_.lease_id;
  return kind() == LeaseKind::kInit && answers_.state >= FREERIDE_STATE_PAUSED;
}

}  // namespace freeride::worker
