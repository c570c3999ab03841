// LeaseWriter: a side task's lease page: leases, orders, and when its supervisor hears of them.
#pragma once

#include <cstdint>

#include "acting/answers.hpp"
#include "acting/task_source.hpp"
#include "freeride/base/time.hpp"
#include "freeride/policy/lease.hpp"

namespace freeride::worker {

/// Belongs to the acting thread, which is the page's one writer. No allocation.
class LeaseWriter {
 public:
  /// Both outlive it.
  LeaseWriter(TaskSource& source, const Answers& answers, int64_t grace_ns, int64_t hang_ns);

  void open(policy::LeaseKind kind, int64_t deadline_ns, int64_t begin_ns, int64_t now_ns);
  /// The iteration behind the bubble leases that are opened from now on. The runner reckons by it what it may risk.
  void in_iteration(uint64_t iteration) { iteration_ = static_cast<uint32_t>(iteration) + 1; }
  /// Takes the open lease back. `taken_up`: its process has executed under it, as its clock shows.
  void close(int64_t now_ns, bool taken_up);
  /// An order to stop takes the lease back, too. False: it is the present one.
  bool set_order(uint32_t order, int64_t now_ns);

  policy::LeaseKind kind() const { return static_cast<policy::LeaseKind>(lease_.kind); }
  bool for_steps() const { return kind() == policy::LeaseKind::kBubble || kind() == policy::LeaseKind::kIdle; }
  uint64_t id() const { return lease_.lease_id; }
  uint32_t order() const { return lease_.order; }
  int64_t deadline_ns() const { return static_cast<int64_t>(lease_.deadline_ns); }
  int64_t opened_ns() const { return sane(lease_.opened_ns); }

  /// Paused again under a lease for steps that is still open, or found no step that fits: the rest is for somebody
  /// else.
  bool given_back() const;
  /// Whether the runner has not begun to execute under the open lease for steps.
  bool not_started() const { return for_steps() && !answers_.executing; }

  // ---- init, profile and save leases
  /// Which one it is to have; `paused`: nothing of its execution is being judged.
  policy::LeaseKind wanted(bool paused) const;
  /// Holds one and has done all that it is for.
  bool own_done() const;
  /// It saves its state once it is paused under the order to pause; false takes that back.
  void ask_to_save(bool wanted) { save_wanted_ = wanted; }
  /// It is initialised although it is ordered to pause: its place is taken only once it has been seen to work.
  void initialise_paused() { init_paused_ = true; }

  /// Wakes the supervisor once a change of the lease has stood for a moment; until then nobody but the runner needs to
  /// know, and on a CPU device the supervisor would take the core before the side task. Returns when to call again, 0:
  /// not needed.
  int64_t tell_supervisor(int64_t now_ns);

 private:
  void write(int64_t now_ns, int64_t tell_after_ns);

  TaskSource& source_;
  const Answers& answers_;
  pages::Lease lease_;
  uint32_t iteration_ = 0;
  int64_t tell_at_ns_ = 0;  // the supervisor does not know of the page's last change; 0: it does
  uint64_t skipped_at_open_ = 0;
  bool initialised_ = false;  // has had its init or profile lease
  bool save_wanted_ = false, init_paused_ = false;
};

}  // namespace freeride::worker
