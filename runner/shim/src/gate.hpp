// Gate: where a submission waits for a lease, and for room in the queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "credit.hpp"
#include "freeride/base/clock.hpp"
#include "in_flight.hpp"
#include "limits.hpp"
#include "passage.hpp"
#include "shim_page.hpp"

namespace freeride::shim {

/// Joins the lease page, the queue and the judgement. Any thread. pass() blocks, without any lock: on the lease page's
/// futex for a lease, and with short sleeps between two looks at events for room in the queue.
class Gate {
 public:
  using Namer = std::function<std::string(const Cost*)>;

  /// `lease` outlives the gate. `name_of` is called when something is too long, without locks.
  Gate(const freeride_lease_page& lease, const Clock& clock, InFlight& queue, ShimPage& page, const Limits& limits,
       Namer name_of)
      : lease_(lease), clock_(clock), queue_(queue), page_(page), limits_(limits), name_of_(std::move(name_of)) {}

  /// What a submission that may be made adds to the queue, how much may be on its stream before a mark, and when it
  /// passed. `tried`: it is expected to be too long for the lease.
  struct Passed {
    int64_t weight_ns, mark_ns, now_ns;
    bool tried;
  };
  /// Returns when the submission may be made: InFlight is told of it, or cancel()s it.
  /// `credit` gets what more the thread may submit to that stream, if anything: as much is in the queue, too.
  Passed pass(const Wish& wish, const Cost* cost, Credit& credit);
  /// Looks what is done. True: something is.
  bool look(int64_t now_ns);

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Waiting;
  static uint64_t next_number();
  Room room(int64_t now_ns, uint32_t& sequence);
  int64_t orders_until_ns(int64_t now_ns);
  int64_t give_credit(const Room& room, int64_t queued_ns, const Wish& wish, Credit& credit);
  bool try_due(const Room& room, const Wish& wish);
  void wait_for_lease(const Room& room, uint32_t sequence, Waiting& waiting);
  void wait_for_queue(Waiting& waiting, int64_t now_ns, int64_t queued_ns);
  void watch_late(uint32_t sequence);
  void note_too_short(const Room& room, const Wish& wish, const Cost* cost, Waiting& waiting);

  const freeride_lease_page& lease_;
  const Clock& clock_;
  InFlight& queue_;
  ShimPage& page_;
  const Limits limits_;
  const Namer name_of_;
  const uint64_t number_ = next_number();    ///< of this gate; no other of the process has it
  std::atomic<uint64_t> lease_id_{0};        ///< of the last lease that was seen open
  std::atomic<int64_t> deadline_ns_{0};      ///< of that
  std::atomic<int64_t> boot_offset_ns_{0};   ///< CLOCK_BOOTTIME less CLOCK_MONOTONIC
  std::atomic<int64_t> boot_looked_ns_{-1};  ///< when that was looked at
  std::atomic<bool> watching_{false};        ///< somebody watches what a lease has left
  const bool steady_ = ticks_are_steady();
  TickRate rate_;
  std::mutex mutex_;  ///< of trials_ alone
  Trials trials_;
};

}  // namespace freeride::shim
