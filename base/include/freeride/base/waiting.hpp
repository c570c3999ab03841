// Waiting: says on a terminal that something takes its time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace freeride {

/// For as long as it lives and from the third second on, the standard error shows `what` and for how long that has been
/// going on, on a line of its own that is gone afterwards. Where that is no terminal, or a dumb one, it does nothing.
/// Nobody else may write to the terminal meanwhile. It has a thread, which takes no signals; the destructor joins it.
class Waiting {
 public:
  explicit Waiting(std::string what, std::chrono::milliseconds patience = std::chrono::seconds(2));
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  void tell(std::chrono::milliseconds patience);

  std::string what_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false, shown_ = false;
  std::thread thread_;
};

}  // namespace freeride
