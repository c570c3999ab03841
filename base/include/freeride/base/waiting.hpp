// Waiting: says on a terminal that something takes its time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace freeride {

/// For as long as it lives and from the third second on, the standard error shows `what`, and for how long it has
/// lasted. Once at() has said how far it is, a bar shows that, too. All is on one line, which is removed at the end. It
/// does nothing if that is no terminal, or a dumb one. Nobody else may write to the terminal meanwhile. It has a
/// thread, which takes no signals; the destructor joins it.
class Waiting {
 public:
  explicit Waiting(std::string what, std::chrono::milliseconds patience = std::chrono::seconds(2));
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  /// From now on so much of it is done, of 1. Any thread; does not block.
  void at(double share) { share_ = share; }

 private:
  void tell(std::chrono::milliseconds patience);

  std::string what_;
  std::atomic<double> share_{-1};  // negative: nobody has said
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false, shown_ = false;
  std::thread thread_;
};

}  // namespace freeride
