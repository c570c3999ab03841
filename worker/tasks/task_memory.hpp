// TaskMemory: what a side task holds of its device's memory and of the host's.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace freeride::worker {

/// Main thread. On a CPU device the device's memory is the host's.
class TaskMemory {
 public:
  explicit TaskMemory(bool cpu_device) : cpu_device_(cpu_device) {}

  /// Reads /proc for a process that `pidfd` says still lives.
  void look(pid_t pid, int pidfd);
  /// On a GPU, as the driver says.
  void note_device(int64_t bytes);
  /// The kernel's high-water mark of the process, as its supervisor says.
  void note_host_peak(int64_t bytes);

  int64_t resident_bytes() const { return resident_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t host_resident_bytes() const { return host_resident_bytes_; }
  int64_t host_peak_bytes() const { return host_peak_bytes_; }

 private:
  const bool cpu_device_;
  int64_t resident_bytes_ = 0, peak_bytes_ = 0;            // of the device
  int64_t host_resident_bytes_ = 0, host_peak_bytes_ = 0;  // of its process
};

}  // namespace freeride::worker
