// What the shipped side tasks share: which backend a task computes on, and how long a step goes on.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "freeride/plugin.hpp"

namespace common {

enum class Backend { kCpu, kCuda };

#ifdef FREERIDE_PLUGIN_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

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
  if (kHasCuda) return Backend::kCuda;
  throw freeride::Unavailable("this plugin was built without CUDA, so it cannot use " + device +
                              "; build it where nvcc is, or give --param backend=cpu to use the host's CPU");
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

/// Where a task computes, and how.
struct Setup {
  Backend backend = Backend::kCpu;
  double step_ms = 1;  ///< length of a step; on a GPU of a piece, at most
  bool spin = true;    ///< see Device::open
};

/// What every one of these side tasks has: the parameters that say where it computes, and steps made of small pieces.
/// A member of the task.
class Computing {
 public:
  explicit Computing(freeride::SideTask* task)
      : step_ms_(task, "step_ms", 1, "length of a step", {0.05, 100}),
        backend_(task, "backend", "auto", "where to compute", {"auto", "cpu", "cuda"}),
        wait_(task, "host_wait", "spin", "for the GPU", {"spin", "block"}) {}

  /// On the task's device. Throws as choose_backend().
  Setup on(const std::string& device) const {
    return {choose_backend(backend_, device), step_ms_, wait_.get() == "spin"};
  }
  /// A step: pieces until one says that the work is done, or another would not end in time.
  template <class Piece>
  freeride::Step step(Piece&& piece) const {
    StepBudget budget(step_ms_);
    do {
      if (piece()) return freeride::Step::kFinished;
    } while (budget.another());
    return freeride::Step::kMore;
  }
  double step_ms() const { return step_ms_; }

 private:
  freeride::Param<double> step_ms_;
  freeride::Param<std::string> backend_;
  freeride::Param<std::string> wait_;
};

/// How much of a divisible work to do at once, so that a piece takes about as long as a step should: learned from what
/// the recent pieces took, since GPUs, their shares and their other work differ.
///
/// Small pieces take longer for their size than large ones. So a work that was once cut into two would stay so, though
/// it fits in one, and lose a tenth of its speed: now and then, where it is a near thing, one piece fewer is tried.
class Pace {
 public:
  explicit Pace(double piece_ms) : piece_ns_(piece_ms * 1e6) {}

  /// How much of `left` units to do next, where the whole work has `total`: even parts rather than a short last one.
  uint64_t next(uint64_t left, uint64_t total) {
    tries_ = false;
    if (left == 0) return 0;
    const double fitting =
        ns_per_unit_ > 0 ? piece_ns_ / ns_per_unit_ : static_cast<double>(total / 64);  // unknown yet
    if (fitting >= static_cast<double>(left)) return left;
    const auto most = std::max<uint64_t>(1, static_cast<uint64_t>(fitting));
    uint64_t parts = (left + most - 1) / most;
    if (left == total && parts > 1 && ns_per_unit_ > 0 && ++works_ % kTryEvery == 0) {
      const double longer_ns = ns_per_unit_ * static_cast<double>(left) / static_cast<double>(parts - 1);
      tries_ = longer_ns <= kNear * piece_ns_;
      if (tries_) --parts;
    }
    return (left + parts - 1) / parts;
  }

  void done(uint64_t units, std::chrono::nanoseconds took) {
    if (units == 0) return;
    const double now = static_cast<double>(took.count()) / static_cast<double>(units);
    const bool found = tries_ && static_cast<double>(took.count()) <= piece_ns_;
    ns_per_unit_ = ns_per_unit_ > 0 && !found ? 0.75 * ns_per_unit_ + 0.25 * now : now;
  }

 private:
  static constexpr uint64_t kTryEvery = 64;  // works
  static constexpr double kNear = 1.15;      // of a piece's length, which a try may take at most, by what is known

  double piece_ns_;
  uint64_t works_ = 0;      // that were cut
  bool tries_ = false;      // the present piece is longer than what is known allows
  double ns_per_unit_ = 0;  // 0: not known
};

}  // namespace common
