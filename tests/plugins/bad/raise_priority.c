/* Wants to go before training: another policy, another nice value, another session, another core. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  const struct sched_param normal = {0}, first = {1};
  bad_try(sched_setscheduler(0, SCHED_OTHER, &normal) == 0, "leave SCHED_IDLE");
  bad_try(sched_setscheduler(0, SCHED_FIFO, &first) == 0, "run in real time");
  bad_try(setpriority(PRIO_PROCESS, 0, -5) == 0, "be less nice");
  bad_try(setsid() >= 0, "have a session of its own");
  bad_try(setpriority(PRIO_USER, 0, 0) == 0, "change all its user's processes");
  return bad_end();
}
BAD_PLUGIN("raise_priority", step)
