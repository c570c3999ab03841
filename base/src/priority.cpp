#include "freeride/base/priority.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "freeride/base/fd.hpp"

namespace freeride {

Status stand_behind_training() {
  constexpr int kLeast = 19;
  const sched_param none{};
  if (sched_setscheduler(0, SCHED_BATCH, &none) != 0) return errno_error("cannot use the batch scheduler", errno);
  // Of this thread only: on Linux a nice value is a thread's.
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kLeast) != 0)
    return errno_error("cannot use a nice value of 19", errno);
  return {};
}

Status leave_memory_to_training(uint64_t bytes) {
#ifndef FREERIDE_SANITIZED  // a sanitizer's own maps are terabytes
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0) return errno_error("cannot read the memory limit", errno);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, bytes);
  if (setrlimit(RLIMIT_DATA, &limit) != 0) return errno_error("cannot limit this process's memory", errno);
#else
  (void)bytes;
#endif
  const Fd file(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (!file.valid() || write(file.get(), "500", 3) != 3)
    return errno_error("cannot stand before training when memory is short", errno);
  return {};
}

}  // namespace freeride
