/* Stops its own process: it neither executes nor pauses. */
#define _GNU_SOURCE
#include <signal.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  raise(SIGSTOP);
  return FREERIDE_OK;
}
BAD_PLUGIN("stop_itself", step)
