// Background: a thread for what may take longer than a loop may be held up.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride {

/// Pieces of work, one after the other, on a thread of its own; what follows from each is done on the loop's. All calls
/// from the loop's thread. The destructor waits for the piece under way and drops the others, and whatever would
/// follow.
class Background {
 public:
  /// Errors: kExhausted (descriptors, threads).
  static Result<std::unique_ptr<Background>> create();
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  /// `work` must not throw, and touch nothing that the loop's thread does meanwhile.
  void run(std::function<void()> work, std::function<void()> then);
  /// The same, in turn with what waits for run(), however much that is: for what is short, and awaited by somebody.
  void run_soon(std::function<void()> work, std::function<void()> then);
  int fd() const { return done_.get(); }  ///< readable when finish() has something to do
  /// Does what follows from pieces that are done, of at most `most` of them.
  void finish(size_t most = SIZE_MAX);

 private:
  struct Piece {
    std::function<void()> work, then;
  };
  explicit Background(Fd done) : done_(std::move(done)) {}
  void add(std::deque<Piece>& to, Piece piece);
  void serve();

  Fd done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> soon_, waiting_, finished_;  // under mutex_
  bool ends_ = false;                            // under mutex_
  std::thread thread_;
};

}  // namespace freeride
