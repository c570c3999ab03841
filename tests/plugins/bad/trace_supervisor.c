/* Traces its supervisor. */
#define _GNU_SOURCE
#include <sys/ptrace.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  bad_try(ptrace(PTRACE_ATTACH, 1, NULL, NULL) == 0, "trace its supervisor");
  return bad_end();
}
BAD_PLUGIN("trace_supervisor", step)
