// Background: a thread for what may take longer than the loop may be held up.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// Pieces of work, one after the other, on a thread of its own; what follows from each is done on the loop's. All calls
/// from the loop's thread. The destructor waits for the piece under way and drops the others, and whatever would
/// follow.
class Background {
 public:
  /// Errors: kExhausted (descriptors, threads).
  static Result<std::unique_ptr<Background>> create(Loop& loop);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// `work` must not throw, and touch nothing that the loop's thread does meanwhile.
  void run(std::function<void()> work, std::function<void()> then);

 private:
  struct Piece {
    std::function<void()> work, then;
  };
  Background(Loop& loop, Fd done) : loop_(loop), done_(std::move(done)) {}
  void serve();
  void on_done();

  Loop& loop_;
  Fd done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> waiting_, finished_;  // under mutex_
  bool ends_ = false;                     // under mutex_
  std::thread thread_;
};

}  // namespace freeride::worker
