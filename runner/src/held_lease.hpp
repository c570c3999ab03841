// HeldLease: the lease under which the task executes, and the clock it is held against.
#pragma once

#include <cstdint>

#include "answer.hpp"
#include "freeride/base/clock.hpp"
#include "freeride/base/time.hpp"
#include "freeride/pages.h"
#include "freeride/pages/mapping.hpp"

namespace freeride::runner {

/// What the lease page says.
struct SeenLease {
  pages::Lease lease;
  uint32_t sequence = 0;  ///< of the page when it was read
  bool readable = false;  ///< else its writer died while writing, or is at it: no lease, until the word changes

  bool open(int64_t now_ns) const { return readable && lease.lease_id != 0 && as_time(lease.deadline_ns) > now_ns; }
};

/// Follows the lease page under a task that executes. Reads the clock as seldom as can be: the end of one step is the
/// begin of the next. Main thread; nothing blocks. The page is the caller's.
class HeldLease {
 public:
  HeldLease(const freeride_lease_page& page, Answer& answer) : page_(page), answer_(answer) {}

  SeenLease read() const;
  /// Futex word: changes with the page.
  const uint32_t& word() const { return page_.sequence; }

  /// From now on what is executed is executed under this lease.
  void take(const SeenLease& seen) {
    held_ = seen.lease;
    sequence_ = seen.sequence;
    answer_.works_under(held_.lease_id);
  }
  /// May the task go on? One load while the page is as it was; else what it says now is taken over, if it is a lease
  /// of the same kind.
  bool open() { return unchanged() || follow(); }
  bool unchanged() const { return pages::load_acquire(page_.sequence) == sequence_; }
  /// The page says so: the lease has ended before its deadline, now.
  void taken_back() { held_.deadline_ns = static_cast<uint64_t>(now_ns_); }

  const pages::Lease& held() const { return held_; }
  uint32_t kind() const { return held_.kind; }
  uint32_t sequence() const { return sequence_; }
  int64_t deadline_ns() const { return as_time(held_.deadline_ns); }
  int64_t room_ns() const { return deadline_ns() - now_ns_; }

  /// Has nothing been executed under it yet?
  bool fresh() const { return is_fresh(held_); }
  bool is_fresh(const pages::Lease& lease) const { return lease.lease_id != last_used_; }
  /// A step or piece begins under it.
  void use(int64_t begin_ns) {
    if (!fresh()) return;
    last_used_ = held_.lease_id;
    answer_.first_step(begin_ns);
  }

  /// The clock as it was last read, and reading it.
  int64_t now_ns() const { return now_ns_; }
  int64_t look() { return now_ns_ = SteadyClock::now(); }
  void looked(int64_t now_ns) { now_ns_ = now_ns; }

 private:
  bool follow();

  const freeride_lease_page& page_;
  Answer& answer_;
  pages::Lease held_;
  uint32_t sequence_ = 0;   ///< of the page when it was read
  uint64_t last_used_ = 0;  ///< lease of the last step
  int64_t now_ns_ = 0;
};

}  // namespace freeride::runner
