// The host table that a plugin gets: its log, its metrics, its reasons.
#pragma once

#include <array>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "freeride/pages.h"
#include "freeride/plugin.h"
#include "limits.hpp"

namespace freeride::runner {

/// What stands behind freeride_host for one task. log(), metric() and now_ns() may be called on any thread, fail() on
/// the main thread. Log lines go to `log_fd` as "level text"; a line that the reader of a pipe has no room for is
/// dropped and counted, so that a worker that does not read holds nobody up. Metrics go to the answer page.
class Host {
 public:
  Host(freeride_answer_page& answer, int log_fd);
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const freeride_host* table() const { return &table_; }
  /// What a yield point does; called on the main thread. Before the table is handed out.
  void on_yield(std::function<freeride_status()> yield) { yield_ = std::move(yield); }
  /// What a yield point behind a queued piece does: `wait` as in freeride_yield.
  using Wait = std::function<freeride_status(bool all)>;
  void on_yield_queued(std::function<freeride_status(const Wait&)> yield) { yield_queued_ = std::move(yield); }
  /// What the gate of the imperative interface does; called on any thread.
  void on_gate(std::function<freeride_status()> gate) { gate_ = std::move(gate); }

  void log(int32_t level, const char* text);
  void metric(const char* name, double value);
  freeride_status yield_point();
  freeride_status yield_queued(const Wait& wait);
  freeride_status pass_gate();
  /// Why the present transition fails; "" when nobody said. Taken by take_reason(), which forgets it.
  void fail(const char* text);
  std::string take_reason();

 private:
  freeride_host table_{};
  std::function<freeride_status()> yield_, gate_;
  std::function<freeride_status(const Wait&)> yield_queued_;
  freeride_answer_page& answer_;
  int log_fd_;
  std::mutex log_mutex_;
  std::string line_;      ///< under log_mutex_; kept, so that logging does not allocate each time
  uint64_t dropped_ = 0;  ///< under log_mutex_
  std::mutex metric_mutex_;
  uint32_t metrics_ = 0;   ///< under metric_mutex_: names in use
  bool too_many_ = false;  ///< under metric_mutex_: said so once
  std::array<char, kReasonBytes> reason_{};
};

}  // namespace freeride::runner
