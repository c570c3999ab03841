// Leftovers: what a dead side task leaves, put away on a thread apart.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "freeride/base/fd.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// A sandbox in which all is dead. A scratch folder may hold a million files, and a GPU's memory and a trainer that
/// attaches are looked after in the main thread, whose this is.
class Leftovers {
 public:
  /// `name`: of the task. `keep`: what is in the scratch folder.
  Leftovers(Loop& loop, std::string name, Child child, Fd scratch, bool keep);
  ~Leftovers() { wait(); }
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  /// Begins; `done` is called once, later, unless wait() comes first. False: there is no thread to be had.
  bool put_away(std::function<void()> done);
  /// The same here and now.
  void put_away_now();
  /// Until put_away() is done, whether it calls or not.
  void wait();
  /// What held the task, for its explanation. Once it is put away.
  const Hold& hold() const { return *child_.hold; }

 private:
  Loop& loop_;
  const std::string name_;
  Child child_;
  Fd scratch_, done_;
  const bool keep_;
  std::thread thread_;
};

}  // namespace freeride::worker
