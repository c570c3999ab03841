/* Forks, and its children fork. */
#define _GNU_SOURCE
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  for (int i = 0; i < 10000; ++i) {
    if (fork() < 0) return bad_fail("fork");
  }
  return FREERIDE_OK;
}
BAD_PLUGIN("fork_bomb", step)
