/* Forks in InitSideTask a child that leaves the session and would live for ever; its pid goes to <scratch>/child. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tiny.h"

static char scratch[4096];

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  (void)host;
  snprintf(scratch, sizeof(scratch), "%s/child", info->scratch_dir);
  *task = scratch;
  return FREERIDE_OK;
}

static freeride_status init(void* task) {
  (void)task;
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    if (fork() != 0) _exit(0); /* the grandchild has no parent of ours */
    FILE* file = fopen(scratch, "w");
    if (file != NULL) {
      fprintf(file, "%d\n", (int)getpid());
      fclose(file);
    }
    for (;;) pause();
  }
  if (child > 0) waitpid(child, NULL, 0); /* so that one process is left behind, and not two for a moment */
  return child < 0 ? FREERIDE_ERROR : FREERIDE_OK;
}

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("child");
  plugin.create = create;
  plugin.init = init;
  return &plugin;
}
