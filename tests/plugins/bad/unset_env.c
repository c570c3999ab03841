/* Forgets what it was told of its GPU. */
#define _GNU_SOURCE
#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  clearenv();
  return FREERIDE_FINISHED;
}
BAD_PLUGIN("unset_env", step)
