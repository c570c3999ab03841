// ProfileRecorder: every duration of a profile, for the record that the worker gets of it.
#pragma once

#include <cstdint>
#include <vector>

#include "freeride/pages.h"

namespace freeride::runner {

/// Bounded, and allocated beforehand: recording is a store. Main thread.
class ProfileRecorder {
 public:
  ProfileRecorder() { samples_.reserve(FREERIDE_PROFILE_MOST_SAMPLES); }

  void start(int64_t duration_ns) { add(FREERIDE_PROFILE_START, 0, duration_ns); }
  void pause(int64_t duration_ns) { add(FREERIDE_PROFILE_PAUSE, 0, duration_ns); }
  /// A piece ended at a yield point.
  void piece(int64_t duration_ns);
  /// The step has ended, and with it its last piece, which took `piece_ns`.
  void step(int64_t step_ns, int64_t piece_ns);
  /// The step was given up: it does not count.
  void abandoned() { piece_ = 0; }

  /// Writes the record into a pipe. Blocks while that is full.
  void write(int fd, int64_t stop_ns) const;

 private:
  void add(uint32_t kind, uint32_t piece, int64_t duration_ns);
  std::vector<freeride_profile_sample> samples_;
  uint32_t piece_ = 0;  ///< place of the present one
};

}  // namespace freeride::runner
