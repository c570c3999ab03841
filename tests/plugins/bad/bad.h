/* What the misbehaving plugins share: each does one wrong thing, in a bubble, after a few good steps. Those that try
 * something which should be denied end FINISHED when all of it was, and fail, naming it, when something was not. */
#ifndef FREERIDE_TESTS_BAD_H
#define FREERIDE_TESTS_BAD_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../tiny.h"

static const freeride_host* bad_host;
static const freeride_task_info* bad_info;
static char bad_scratch[4096], bad_path[4096];
static long bad_pid;
static int bad_allowed;

static inline freeride_status bad_create(const freeride_host* host, const freeride_task_info* info, void** task) {
  static int the_task;
  bad_host = host;
  bad_info = info;
  snprintf(bad_scratch, sizeof(bad_scratch), "%s", info->scratch_dir);
  snprintf(bad_path, sizeof(bad_path), "%s", tiny_param(info, "path"));
  bad_pid = atol(tiny_param(info, "pid"));
  *task = &the_task;
  return FREERIDE_OK;
}

static inline freeride_status bad_fail(const char* what) {
  char text[512];
  snprintf(text, sizeof(text), "%s: %s", what, strerror(errno));
  bad_host->fail(bad_host->context, text);
  return FREERIDE_ERROR;
}

/* Something that should have been denied. */
static inline void bad_try(int succeeded, const char* what) {
  if (!succeeded) return;
  char text[512];
  snprintf(text, sizeof(text), "was allowed to: %s", what);
  bad_host->fail(bad_host->context, text);
  bad_allowed = 1;
}
static inline freeride_status bad_end(void) {
  return bad_allowed ? FREERIDE_ERROR : FREERIDE_FINISHED;
}

static const freeride_param_spec bad_params[] = {{"path", "", "a path of somebody else's"},
                                                 {"pid", "0", "a process of somebody else's"}};

/* A profile has fewer steps: what is done, is done in bubbles. */
#define BAD_GOOD_STEPS 12
static int bad_steps;
static inline int bad_waits(void) {
  usleep(200);
  return bad_steps++ < BAD_GOOD_STEPS;
}

#define BAD_PLUGIN(name, step)                                      \
  static freeride_status bad_step(void* task) {                     \
    return bad_waits() ? FREERIDE_OK : step(task);                  \
  }                                                                 \
  FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) { \
    static freeride_plugin plugin;                                  \
    plugin = tiny_plugin(name);                                     \
    plugin.params = bad_params;                                     \
    plugin.param_count = 2;                                         \
    plugin.create = bad_create;                                     \
    plugin.run_next_step = bad_step;                                \
    return &plugin;                                                 \
  }

#endif
