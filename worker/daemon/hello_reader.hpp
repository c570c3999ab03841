// HelloReader: reads a stranger's hello in a process of its own.
#pragma once

#include <functional>
#include <memory>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "freeride/pages/handover.hpp"
#include "gpu/end_child.hpp"
#include "loop/loop.hpp"

namespace freeride::worker {

/// A hello may bring any descriptor, and closing one blocks for as long as its file system likes: one that its sender
/// serves (FUSE) would hang this program for good. So a child receives the hello, and hands on what is a memory file.
/// Main thread.
class HelloReader {
 public:
  using Done = std::function<void(Result<pages::Hello>)>;

  /// Reads from `socket`, which is readable and stays the caller's. `done` is called once, later, unless this goes
  /// before. `ended` is called when the child is no more, which may be long after this has gone; not after an error.
  /// Errors: kExhausted.
  static Result<std::unique_ptr<HelloReader>> start(int socket, Loop& loop, Done done, std::function<void()> ended);
  ~HelloReader();
  HelloReader(const HelloReader&) = delete;
  HelloReader& operator=(const HelloReader&) = delete;

 private:
  HelloReader(Loop& loop, Done done) : loop_(loop), done_(std::move(done)) {}
  void on_answer();

  Loop& loop_;
  Done done_;
  Fd answer_, child_;
};

}  // namespace freeride::worker
