/* Floods its log, through the host and past it. */
#include <stdio.h>
#include <unistd.h>

#include "tiny.h"

static const freeride_host* the_host;

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  (void)info;
  the_host = host;
  *task = &the_host;
  return FREERIDE_OK;
}

static freeride_status step(void* task) {
  (void)task;
  for (int i = 0; i < 200; ++i) {
    the_host->log(the_host->context, FREERIDE_LOG_INFO, "a line that nobody will ever read, again and again and again");
    the_host->metric(the_host->context, i % 2 ? "noise" : "a metric whose name is far too long", i);
  }
  return FREERIDE_OK;
}

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("noisy");
  plugin.create = create;
  plugin.run_next_step = step;
  return &plugin;
}
