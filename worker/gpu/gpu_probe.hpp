// GpuProbe: the process that probes a GPU, from start to end; started anew where it ends.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "acting/probe_page.hpp"
#include "loop/loop.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {

/// Main thread; never blocks. The process has a context of its own on the GPU, outside of every MPS server, which takes
/// some 0.5 GiB of its memory: it runs while somebody may have to be looked at, and goes where training wants memory.
class GpuProbe {
 public:
  /// The page of a process that has just been started, or null: there is none any more.
  using Changed = std::function<void(std::shared_ptr<ProbeMapping>)>;

  GpuProbe(std::string gpu, Loop& loop, Changed changed);
  ~GpuProbe();
  GpuProbe(const GpuProbe&) = delete;
  GpuProbe& operator=(const GpuProbe&) = delete;

  /// Whether it is wanted: call it as often as you like. Where it cannot work it is tried again, ever more seldom, and
  /// said once.
  void want(bool wanted);
  /// Ends it, since training wants memory; it comes back a minute later at the earliest.
  void make_room();
  pid_t pid() const { return child_.pid; }  ///< 0: there is none

 private:
  void start();
  void end();
  void ended();

  const std::string gpu_;
  Loop& loop_;
  const Changed changed_;
  Child child_;
  Fd output_;
  int64_t not_before_ns_ = 0, pause_ns_ = 0;
  bool told_ = false;
};

}  // namespace freeride::worker
