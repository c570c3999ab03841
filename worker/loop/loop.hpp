// Loop: the main thread's one place of waiting: descriptors and timers over epoll.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::worker {

/// Calls handlers when descriptors become ready and timers run out. One thread owns it; handlers run on that thread,
/// one at a time, and may call anything here, also forget their own descriptor.
class Loop {
 public:
  using Handler = std::function<void(uint32_t events)>;
  using Timer = uint64_t;

  /// Errors: kExhausted (descriptors).
  static Result<std::unique_ptr<Loop>> create();

  /// Watches `fd`, which stays the caller's and must be forgotten before it is closed. `events`: EPOLLIN and so on.
  Status watch(int fd, uint32_t events, Handler handler);
  void forget(int fd);

  /// Calls `what` once at `when_ns` (CLOCK_MONOTONIC) or as soon after as the loop gets there.
  Timer at(int64_t when_ns, std::function<void()> what);
  void cancel(Timer timer);

  /// Called after every turn of the loop, for descriptors that report an edge only (ZeroMQ's).
  void after_each_turn(std::function<void()> what) { after_turn_ = std::move(what); }

  void run();                       ///< until stop(); may be called again
  void stop() { stopped_ = true; }  ///< from a handler

 private:
  struct Watched {
    uint32_t generation;
    Handler handler;
  };
  int64_t run_timers();  // returns when the next one is due; 0: there is none

  Fd epoll_;
  std::map<int, std::shared_ptr<Watched>> watched_;
  std::map<std::pair<int64_t, Timer>, std::function<void()>> timers_;
  std::map<Timer, int64_t> due_;
  std::function<void()> after_turn_;
  uint64_t last_timer_ = 0;
  uint32_t last_generation_ = 0;
  bool stopped_ = false;
};

}  // namespace freeride::worker
