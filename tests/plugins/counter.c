/* The good one: every step is busy for step_us (or sleeps as long, with sleep=1), and may finish after `finish` steps.
 * With trace=1 it appends "name begin_ns end_ns" of every call to <scratch>/trace, so that a test can hold the order
 * against its leases. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tiny.h"

struct counter {
  const freeride_host* host;
  int64_t step_ns;
  uint64_t finish;
  uint64_t steps;
  int sleeps;
  int trace; /* descriptor, or -1 */
};

static void trace(struct counter* self, const char* name, int64_t begin_ns) {
  char line[96];
  if (self->trace < 0) return;
  const int length = snprintf(line, sizeof(line), "%s %lld %lld\n", name, (long long)begin_ns,
                              (long long)self->host->now_ns(self->host->context));
  if (write(self->trace, line, (size_t)length) != length) self->trace = -1;
}

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  struct counter* self = calloc(1, sizeof(*self));
  if (self == NULL) return FREERIDE_OUT_OF_MEMORY;
  self->host = host;
  self->step_ns = atoll(tiny_param(info, "step_us")) * 1000;
  self->finish = (uint64_t)atoll(tiny_param(info, "finish"));
  self->sleeps = atoi(tiny_param(info, "sleep"));
  self->trace = -1;
  if (self->step_ns < 0) {
    host->fail(host->context, "step_us must not be negative");
    free(self);
    return FREERIDE_BAD_PARAMETER;
  }
  if (atoi(tiny_param(info, "trace"))) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/trace", info->scratch_dir);
    self->trace = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
  host->log(host->context, FREERIDE_LOG_INFO, "counter created");
  trace(self, "create", host->now_ns(host->context));
  *task = self;
  return FREERIDE_OK;
}

static freeride_status traced(void* task, const char* name) {
  struct counter* self = task;
  trace(self, name, self->host->now_ns(self->host->context));
  return FREERIDE_OK;
}
static freeride_status init(void* task) {
  return traced(task, "init");
}
static freeride_status start(void* task) {
  return traced(task, "start");
}
static freeride_status pause_task(void* task) {
  return traced(task, "pause");
}
static freeride_status stop(void* task) {
  return traced(task, "stop");
}

static freeride_status step(void* task) {
  struct counter* self = task;
  const int64_t begin = self->host->now_ns(self->host->context);
  if (self->sleeps) {
    const struct timespec time = {self->step_ns / 1000000000, self->step_ns % 1000000000};
    nanosleep(&time, NULL);
  }
  while (self->host->now_ns(self->host->context) - begin < self->step_ns) {
  }
  ++self->steps;
  self->host->metric(self->host->context, "count", (double)self->steps);
  trace(self, "step", begin);
  return self->finish != 0 && self->steps >= self->finish ? FREERIDE_FINISHED : FREERIDE_OK;
}

static void destroy(void* task) {
  struct counter* self = task;
  if (self->trace >= 0) close(self->trace);
  free(self);
}

static const freeride_param_spec params[] = {
    {"step_us", "1000", "how long a step is busy"},
    {"finish", "0", "finish after so many steps; 0: never"},
    {"sleep", "0", "1: sleep instead of spinning"},
    {"trace", "0", "1: write every call to <scratch>/trace"},
};

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("counter");
  plugin.params = params;
  plugin.param_count = sizeof(params) / sizeof(params[0]);
  plugin.create = create;
  plugin.init = init;
  plugin.start = start;
  plugin.run_next_step = step;
  plugin.pause = pause_task;
  plugin.stop = stop;
  plugin.destroy = destroy;
  return &plugin;
}
