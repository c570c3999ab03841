// What a process has executed, and Starvation: what it has waited for a processor, which is not its own doing.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace freeride {

/// Of a process's main thread, as the kernel counts it: other threads may starve unseen.
struct Starvation {
  int64_t waited_ns = 0;   ///< since its start it was ready to execute and had no processor; a wait that goes on is not
                           ///< in it. 0 on kernels that do not count (no CONFIG_SCHED_INFO)
  bool wants_cpu = false;  ///< executes or waits for a processor now. Also of a process that has ended: it does not
                           ///< hang, whoever reaps it has only had no processor yet
};

/// Reads two files of /proc, some 10 us. `pid` in the namespace of this process's /proc. Any thread.
Starvation starvation_of(pid_t pid);

/// CPU time of all threads of `pid`, in this process's pid namespace; -1: there is no such process. Any thread.
int64_t process_cpu_ns(pid_t pid);

}  // namespace freeride
