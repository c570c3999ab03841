#include "tasks/task_memory.hpp"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace freeride::worker {
namespace {

// A line of /proc/<pid>/status such as "VmRSS:    1234 kB", in bytes; 0: not there.
int64_t status_bytes(const std::string& line, const char* key) {
  if (line.rfind(key, 0) != 0) return 0;
  return std::strtoll(line.c_str() + std::strlen(key), nullptr, 10) * 1024;
}

}  // namespace

void TaskMemory::look(pid_t pid, int pidfd) {
  pollfd gone{pidfd, POLLIN, 0};
  if (pid == 0 || pidfd < 0 || poll(&gone, 1, 0) != 0) return;
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (const int64_t peak = status_bytes(line, "VmHWM:")) note_host_peak(peak);
    if (const int64_t now = status_bytes(line, "VmRSS:")) {
      host_resident_bytes_ = now;
      if (cpu_device_) resident_bytes_ = now;
      return;  // follows VmHWM
    }
  }
}

void TaskMemory::note_device(int64_t bytes) {
  resident_bytes_ = bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes);
}

void TaskMemory::note_host_peak(int64_t bytes) {
  host_peak_bytes_ = std::max(host_peak_bytes_, bytes);
  if (cpu_device_) peak_bytes_ = std::max(peak_bytes_, host_peak_bytes_);
}

}  // namespace freeride::worker
