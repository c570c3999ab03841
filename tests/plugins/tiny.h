/* What the tiny plugins share: a table whose functions do nothing, to be changed in one place each. C11 and C++. */
#ifndef FREERIDE_TESTS_TINY_H
#define FREERIDE_TESTS_TINY_H

#include <freeride/plugin.h>
#include <stddef.h>
#include <string.h>

static inline freeride_status tiny_create(const freeride_host* host, const freeride_task_info* info, void** task) {
  static int the_task;
  (void)host, (void)info;
  *task = &the_task;
  return FREERIDE_OK;
}
static inline freeride_status tiny_ok(void* task) {
  (void)task;
  return FREERIDE_OK;
}
static inline void tiny_destroy(void* task) {
  (void)task;
}

/* A correct plugin without parameters, named `name`. */
static inline freeride_plugin tiny_plugin(const char* name) {
  freeride_plugin plugin;
  memset(&plugin, 0, sizeof(plugin));
  plugin.struct_size = sizeof(plugin);
  plugin.abi_version = FREERIDE_ABI_VERSION;
  plugin.name = name;
  plugin.version = "1";
  plugin.summary = "a plugin of the tests";
  plugin.create = tiny_create;
  plugin.init = tiny_ok;
  plugin.start = tiny_ok;
  plugin.run_next_step = tiny_ok;
  plugin.pause = tiny_ok;
  plugin.stop = tiny_ok;
  plugin.destroy = tiny_destroy;
  return plugin;
}

/* The value of a parameter; the runner fills in every declared one. */
static inline const char* tiny_param(const freeride_task_info* info, const char* key) {
  for (uint32_t i = 0; i < info->param_count; ++i) {
    if (strcmp(info->params[i].key, key) == 0) return info->params[i].value;
  }
  return "";
}

#endif
