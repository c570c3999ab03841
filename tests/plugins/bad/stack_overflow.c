/* Recurses without end. */
#define _GNU_SOURCE
#include "bad.h"

static volatile int deep = 1;
static int recurse(volatile char* above) {
  volatile char here[4096];
  here[0] = *above;
  return deep ? recurse(here) + here[0] : 0;
}
static freeride_status step(void* task) {
  (void)task;
  volatile char begin = 0;
  return recurse(&begin) == 0 ? FREERIDE_OK : FREERIDE_ERROR;
}
BAD_PLUGIN("stack_overflow", step)
