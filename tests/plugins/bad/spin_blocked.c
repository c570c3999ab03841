/* Blocks every signal and never returns. */
#define _GNU_SOURCE
#include <signal.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, NULL);
  for (volatile int turning = 1; turning;) {
  }
  return FREERIDE_OK;
}
BAD_PLUGIN("spin_blocked", step)
