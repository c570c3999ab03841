/* Built from the first version's header alone: uses all of it, checks what the host's table promises, and is finished
 * after `steps` steps. */
#include "plugin_v1.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const freeride_host* the_host;
static long wanted, done;

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  if (host->struct_size < sizeof(freeride_host) || host->abi_version != FREERIDE_ABI_VERSION ||
      info->struct_size < sizeof(freeride_task_info) || info->param_count != 1) {
    host->fail(host->context, "the host's structs are shorter than version 1");
    return FREERIDE_ERROR;
  }
  the_host = host;
  wanted = atol(info->params[0].value);
  *task = &done;
  return info->name && info->device && info->scratch_dir ? FREERIDE_OK : FREERIDE_ERROR;
}

static freeride_status nothing(void* task) {
  return task == &done ? FREERIDE_OK : FREERIDE_ERROR;
}

static freeride_status step(void* task) {
  (void)task;
  the_host->metric(the_host->context, "now_s", (double)the_host->now_ns(the_host->context) / 1e9);
  return ++done < wanted ? FREERIDE_OK : FREERIDE_FINISHED;
}

static freeride_status stop(void* task) {
  char line[80];
  (void)task;
  snprintf(line, sizeof(line), "from version 1, stopped after %ld steps", done);
  the_host->log(the_host->context, FREERIDE_LOG_INFO, line);
  return the_host->extension(the_host->context, "freeride.nothing/1") == NULL ? FREERIDE_OK : FREERIDE_ERROR;
}

static void destroy(void* task) {
  (void)task;
}

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static const freeride_param_spec params[] = {{"steps", "5", "steps until it is finished"}};
  static freeride_plugin plugin;
  memset(&plugin, 0, sizeof(plugin));
  plugin.struct_size = sizeof(plugin);
  plugin.abi_version = FREERIDE_ABI_VERSION;
  plugin.name = "from_v1";
  plugin.version = "1";
  plugin.summary = "a plugin of the tests";
  plugin.params = params;
  plugin.param_count = 1;
  plugin.create = create;
  plugin.init = plugin.start = plugin.pause = nothing;
  plugin.run_next_step = step;
  plugin.stop = stop;
  plugin.destroy = destroy;
  return &plugin;
}
