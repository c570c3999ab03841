// What the shipped side tasks share: which backend a task computes on, and how long a step goes on.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "freeride/plugin.hpp"

namespace common {

enum class Backend { kCpu, kCuda };

/// The backend for parameter `backend` ("auto", "cpu" or "cuda") on `device` ("cpu-N", or a GPU's UUID). Touches no
/// GPU. Throws BadParameter for CUDA on a CPU device, whose side tasks may use no GPU: one that is there is somebody
/// else's. Throws Unavailable where this file was built without CUDA.
inline Backend choose_backend(const std::string& backend, const std::string& device) {
  const bool on_cpu = device.rfind("cpu", 0) == 0;
  if (backend == "cpu" || (backend == "auto" && on_cpu)) return Backend::kCpu;
  if (on_cpu) {
    throw freeride::BadParameter("parameter backend=cuda: the task is on " + device +
                                 ", which is no GPU; load it where there is one, or give backend=cpu");
  }
#ifndef FREERIDE_PLUGIN_CUDA
  throw freeride::Unavailable("this plugin was built without CUDA, so it cannot use " + device +
                              "; build it where nvcc is, or give --param backend=cpu to use the host's CPU");
#endif
  return Backend::kCuda;
}

/// A step of many pieces: `StepBudget budget(step_ms); do { piece(); } while (budget.another());`. Goes on while a
/// piece as long as the longest so far would still end in time, so a step whose pieces are nearly as long as itself has
/// one.
class StepBudget {
 public:
  explicit StepBudget(double step_ms)
      : last_(Clock::now()), end_(last_ + std::chrono::nanoseconds(static_cast<int64_t>(step_ms * 1e6))) {}
  bool another() {
    const auto now = Clock::now();
    longest_ = std::max(longest_, now - last_);
    last_ = now;
    return now + longest_ <= end_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_;
  Clock::time_point end_;
  Clock::duration longest_{};
};

/// How much of a divisible work to do at once, so that a piece takes about as long as a step should: learned from what
/// the recent pieces took, since GPUs, their shares and their other work differ.
class Pace {
 public:
  explicit Pace(double piece_ms) : piece_ns_(piece_ms * 1e6) {}

  /// How much of `left` units to do next, where the whole work has `total`: even parts rather than a short last one.
  uint64_t next(uint64_t left, uint64_t total) const {
    if (left == 0) return 0;
    const double fitting =
        ns_per_unit_ > 0 ? piece_ns_ / ns_per_unit_ : static_cast<double>(total / 64);  // unknown yet
    if (fitting >= static_cast<double>(left)) return left;
    const auto most = std::max<uint64_t>(1, static_cast<uint64_t>(fitting));
    const uint64_t parts = (left + most - 1) / most;
    return (left + parts - 1) / parts;
  }

  void done(uint64_t units, std::chrono::nanoseconds took) {
    if (units == 0) return;
    const double now = static_cast<double>(took.count()) / static_cast<double>(units);
    ns_per_unit_ = ns_per_unit_ > 0 ? 0.75 * ns_per_unit_ + 0.25 * now : now;
  }

 private:
  double piece_ns_;
  double ns_per_unit_ = 0;  // 0: not known
};

}  // namespace common
