// ProbePage: what the acting thread and the process that probes the GPU share. Both are this program, of one version.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"

namespace freeride::worker {

/// What the kernel writes, straight into the page; ns of the GPU's own clock. 0: not yet.
struct ProbeBeats {
  uint64_t began = 0, ended = 0;
  uint64_t gap = 0;   ///< the longest between two looks at the clock; before `ended`
  uint64_t beat = 0;  ///< now and then: what the clock shows, to tell it from the host's
};

/// The acting thread asks by adding one to `asked`. The process launches the kernel, says so in `launched`, and says in
/// `answered` what came of it. Times are of CLOCK_MONOTONIC, ns.
struct ProbePage {
  uint32_t asked = 0;     ///< futex word
  uint32_t answered = 0;  ///< futex word
  uint32_t launched = 0;  ///< the latest question whose kernel has been handed to the GPU; `beats` are its
  uint32_t ready = 0;     ///< 1: there is a context, and questions are heard
  int64_t launched_ns = 0;
  int64_t began_ns = 0, began_by_ns = 0;  ///< of the question `answered`: not before, and not after
  int64_t ended_ns = 0;                   ///< not after
  int64_t gap_ns = 0;
  int64_t for_ns = 0;  ///< how long the kernel looks
  ProbeBeats beats;
};

/// A mapped page. Any thread.
class ProbeMapping {
 public:
  /// A new one, with its descriptor, which the process inherits. Errors: kExhausted, kInternal.
  static Result<std::unique_ptr<ProbeMapping>> create(int64_t for_ns);
  /// The one behind an inherited descriptor. Errors: kInvalidArgument.
  static Result<std::unique_ptr<ProbeMapping>> open(int fd);
  ~ProbeMapping();
  ProbeMapping(const ProbeMapping&) = delete;
  ProbeMapping& operator=(const ProbeMapping&) = delete;

  ProbePage& page() { return *page_; }
  int fd() const { return fd_.get(); }

 private:
  ProbeMapping(Fd fd, ProbePage* page) : fd_(std::move(fd)), page_(page) {}
  Fd fd_;
  ProbePage* page_;
};

/// Outcomes so far, in all bubbles and in held-out ones. Written by the acting thread only.
struct ProbeCounts {
  std::atomic<uint64_t> probes{0}, findings{0}, unknown{0};
  std::atomic<uint64_t> holdout_probes{0}, holdout_findings{0};
};

}  // namespace freeride::worker
