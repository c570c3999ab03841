/* Signals whom it can: its supervisor, `pid` of the host's, everybody. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  /* These "succeed", and PID 1 gets none of them. */
  kill(1, SIGKILL);
  kill(1, SIGSTOP);
  kill(1, SIGTERM);
  kill(-1, SIGTERM);
  bad_try(bad_pid > 1 && bad_pid != getpid() && kill((pid_t)bad_pid, 0) == 0, "signal the worker or the training");
  const struct rlimit none = {0, 0};
  bad_try(prlimit(1, RLIMIT_NOFILE, &none, NULL) == 0, "limit its supervisor");
  bad_try(setpriority(PRIO_PROCESS, 1, 19) == 0, "slow its supervisor down");
  return bad_end();
}
BAD_PLUGIN("kill_others", step)
