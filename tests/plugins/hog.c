/* Every step takes and touches `mb` MiB more, until malloc fails: then FREERIDE_OUT_OF_MEMORY. */
#include <stdlib.h>

#include "tiny.h"

static size_t bytes;
static const freeride_host* the_host;

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  the_host = host;
  bytes = (size_t)atol(tiny_param(info, "mb")) << 20;
  *task = &bytes;
  return FREERIDE_OK;
}

static freeride_status step(void* task) {
  (void)task;
  volatile char* memory = malloc(bytes);
  if (memory == NULL) {
    the_host->fail(the_host->context, "malloc returned NULL");
    return FREERIDE_OUT_OF_MEMORY;
  }
  for (size_t i = 0; i < bytes; i += 4096) memory[i] = 1;
  return FREERIDE_OK;
}

static const freeride_param_spec params[] = {{"mb", "16", "MiB per step"}};

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("hog");
  plugin.params = params;
  plugin.param_count = 1;
  plugin.create = create;
  plugin.run_next_step = step;
  return &plugin;
}
