// ProfileWatch: what a worker measures of a task while it is profiled, and what the task's runner says of itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "freeride/bus/commands.hpp"

namespace freeride::worker {

/// Main thread. Bounded: a profile may take minutes.
class ProfileWatch {
 public:
  static constexpr size_t kMostLooks = 512, kMostSteps = 1024, kMostPieces = 64;
  static constexpr int64_t kFirstPauseNs = 20'000'000;

  explicit ProfileWatch(int64_t begin_ns) : begin_ns_(begin_ns) {}

  /// A look at the task's memory; `gpu_bytes` -1: there is no GPU. Of many looks every second one is forgotten, and
  /// they become rarer.
  void look(int64_t now_ns, int64_t host_bytes, int64_t gpu_bytes);
  int64_t pause_ns() const { return pause_ns_; }

  /// Takes what has come of the runner's record. False: there will be no more.
  bool receive(int pipe_fd);

  /// What was measured. The record of the runner is a claim: durations beyond all sense are left out, and where it is
  /// none there are no durations.
  void fill(bus::Profile& profile) const;

 private:
  const int64_t begin_ns_;
  int64_t pause_ns_ = kFirstPauseNs;
  std::vector<int64_t> t_ns_, host_bytes_, gpu_bytes_;
  std::string record_;
};

}  // namespace freeride::worker
