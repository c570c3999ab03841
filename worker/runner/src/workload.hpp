// The thread in which a task of the imperative interface executes, and the gate that holds it while there is no lease.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>

#include "freeride/pages.h"
#include "freeride/plugin.h"

namespace freeride::runner {

/// RunGpuWorkload in a thread of its own. All but pass() on the main thread. A thread that does not come
/// to its gate any more ends with the process.
class Workload {
 public:
  /// Opens the gate; the first time, starts `body` in the thread. `once`: it lets the thread pass a single time.
  void open(const std::function<freeride_status()>& body, bool once = false);
  /// From now on pass() waits. Returns when the thread is there, or has ended, or it is `until_ns`.
  void close(int64_t until_ns);
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

  /// The gate. On the workload's thread: returns at once while it is open.
  freeride_status pass();

 private:
  enum Gate : uint32_t { kClosed, kOpen, kOnce, kAbandoned };

  std::atomic<uint32_t> gate_{kClosed};
  std::atomic<uint32_t> at_gate_{0};  ///< 1: waits there
  std::atomic<uint32_t> arrivals_{0};
  std::atomic<uint32_t> ended_{0};
  std::thread thread_;
  std::atomic<std::thread::id> id_;
  freeride_status status_ = FREERIDE_OK;  ///< written before ended_
  std::atomic<bool> started_{false};
};

}  // namespace freeride::runner
