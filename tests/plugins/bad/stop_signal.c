/* Asks its supervisor, in nobody's name, and its own runner to stop it in good order, so as to be started anew. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  if (getppid() == 1) { /* in a sandbox: there it is the supervisor */
    siginfo_t info;
    memset(&info, 0, sizeof(info));
    info.si_code = SI_QUEUE; /* si_pid stays 0: from outside the namespace, it says */
    syscall(SYS_rt_sigqueueinfo, 1, SIGTERM, &info);
    syscall(SYS_rt_sigqueueinfo, 1, SIGINT, &info);
    kill(1, SIGTERM);
  }
  raise(SIGRTMIN + 7); /* the runner's own */
  return FREERIDE_OK;
}
BAD_PLUGIN("stop_signal", step)
