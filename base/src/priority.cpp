#include "freeride/base/priority.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

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

}  // namespace freeride
