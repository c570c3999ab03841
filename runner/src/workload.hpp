// The thread in which a task of the imperative interface executes, and the gate that holds it while there is no lease.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "admission.hpp"
#include "freeride/pages.h"
#include "freeride/plugin.h"
#include "host.hpp"

namespace freeride::runner {

/// RunGpuWorkload in a thread of its own. All but pass…() on the main thread. A thread that does not
/// come to its gate any more ends with the process. `admission` is the caller's, and lives as long.
class Workload {
 public:
  explicit Workload(Admission& admission) : admission_(admission) {}

  /// Starts the thread, runs `prepare` in it and waits for its end, with the gate open; then the thread waits at its
  /// gate for open(), and executes `body`. A failure ends the thread.
  freeride_status prepare(const std::function<freeride_status()>& prepare,
                          const std::function<freeride_status()>& body);
  /// Opens the gate; the first time, if nothing was prepared, starts `body` in the thread. `once`: it lets the thread
  /// pass a single time.
  void open(const std::function<freeride_status()>& body, bool once = false);
  /// Under which lease, and until when the gate is going to be open (CLOCK_MONOTONIC), if nobody closes it before; 0:
  /// not known.
  void expect_open_until(uint64_t lease_id, int64_t until_ns) {
    lease_id_.store(lease_id);
    open_until_ns_.store(until_ns);
  }
  /// From now on pass() waits. Returns when the thread is there, or has ended, or it is `until_ns`.
  void close(int64_t until_ns);
  /// From stands() to goes_on() the process may be stopped: what passes meanwhile is nothing that a piece takes.
  void stands(int64_t now_ns) { stands_since_ns_ = now_ns; }
  void goes_on(int64_t now_ns);
  /// The present piece was let through though it does not fit: it is not waited for.
  bool is_cut() const { return cut_.load(); }
  /// pass() does not wait, and says FREERIDE_ABANDONED. Waits for the body's end, `most_ms` at most.
  void abandon(int64_t most_ms);

  /// Blocks until the lease page changes, the thread is at its gate, the body has ended or it is `until_ns`
  /// (CLOCK_MONOTONIC).
  void wait(const uint32_t& lease_sequence, uint32_t expected, int64_t until_ns);

  bool started() const { return started_; }
  /// The gate is closed, and the thread there; after open(…, true), again.
  bool waits() const { return gate_.load() == kClosed && at_gate_.load() != 0; }
  /// How often the thread has come to its gate: unchanged while it is in one piece.
  uint32_t arrivals() const { return arrivals_.load(); }
  bool ended() const { return ended_.load() != 0; }
  freeride_status status() const { return status_; }  ///< the body's, once it has ended
  bool is_this_thread() const { return started_ && std::this_thread::get_id() == id_.load(); }

  /// The gate, at the end of a step, or of whatever the workload parts by it. On the workload's thread: returns at once
  /// while it is open and the next step may begin (Admission); where it may not, it closes the gate for the rest of the
  /// lease.
  freeride_status pass();
  /// The same at a yield point, for the next piece.
  freeride_status pass_piece();
  /// The same behind a piece that has been queued on a GPU and need not be done: where this piece and the next will be
  /// done before the gate closes, it waits for the piece before this one only, so that the GPU always has work; else
  /// for this one.
  freeride_status pass_queued(const Host::Wait& wait);

 private:
  void end();
  void comes_to_gate();
  freeride_status wait_at_gate();
  freeride_status begin_piece();
  void piece_begins();
  int64_t piece_ends();
  void piece_done();

  enum Gate : uint32_t { kClosed, kOpen, kOnce, kAbandoned };

  std::atomic<uint32_t> gate_{kClosed};
  std::atomic<uint32_t> at_gate_{0};  ///< 1: waits there
  std::atomic<uint32_t> arrivals_{0};
  std::atomic<uint32_t> prepared_{0};
  std::atomic<uint32_t> ended_{0};
  std::atomic<const uint32_t*> lease_sequence_{nullptr};  ///< what wait() was called with last
  std::atomic<int64_t> open_until_ns_{0};
  std::atomic<uint64_t> lease_id_{0};
  std::atomic<uint32_t> openings_{0};
  std::atomic<bool> cut_{false};
  std::atomic<int64_t> stood_ns_{0};  ///< in all
  int64_t stands_since_ns_ = 0;       ///< 0: it goes on
  std::thread thread_;
  std::atomic<std::thread::id> id_;
  freeride_status prepared_status_ = FREERIDE_OK;  ///< written before prepared_
  freeride_status status_ = FREERIDE_OK;           ///< written before ended_
  std::atomic<bool> started_{false};
  Admission& admission_;
  // The workload's thread's own.
  int64_t piece_begin_ns_ = 0;
  int64_t piece_stood_ns_ = 0;  ///< stood_ns_ when the piece began
  uint64_t worked_lease_ = 0;   ///< the last one under which a piece began
  uint32_t piece_opening_ = 0;  ///< of the gate, when the piece began
};

}  // namespace freeride::runner
