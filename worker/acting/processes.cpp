#include "acting/processes.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "freeride/base/time.hpp"

namespace freeride::worker {

int64_t SystemProcesses::cpu_ns(int pid) {
  // The clock id that clock_getcpuclockid() makes, without its extra system call.
  const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(pid) << 3) | 2u);
  return clock_ns(clock);
}

Starvation SystemProcesses::starvation(int pid) {
  return starvation_of(pid);
}

bool SystemProcesses::lives(int pid, int pidfd) {
  // A pidfd that polls readable has ended: its number may be somebody else's by now.
  pollfd ended{pidfd, POLLIN, 0};
  return pid > 1 && pidfd >= 0 && poll(&ended, 1, 0) == 0;
}

void SystemProcesses::freeze_and_kill(int pid, int pidfd) {
  if (!lives(pid, pidfd)) return;
  ::kill(-pid, SIGSTOP);
  syscall(SYS_pidfd_send_signal, pidfd, SIGSTOP, nullptr, 0);
  ::kill(-pid, SIGKILL);
  syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
}

}  // namespace freeride::worker
