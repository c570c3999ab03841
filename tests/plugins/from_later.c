/* As built from a later header of version 1: its table is longer than today's, and it would use a function of the
 * host's that is not there yet. */
#include "tiny.h"

typedef struct later_host {
  freeride_host today;
  void (*appended)(void* context);
} later_host;

typedef struct later_plugin {
  freeride_plugin today;
  void (*appended)(void* task);
} later_plugin;

static void never(void* task) {
  (void)task;
  __builtin_trap();
}

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  const later_host* later = (const later_host*)host;
  if (host->struct_size >= offsetof(later_host, appended) + sizeof(later->appended)) {
    later->appended(host->context);
  } else {
    host->log(host->context, FREERIDE_LOG_INFO, "does without");
  }
  return tiny_create(host, info, task);
}

static freeride_status step(void* task) {
  (void)task;
  return FREERIDE_FINISHED;
}

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static later_plugin plugin;
  plugin.today = tiny_plugin("from_later");
  plugin.today.struct_size = sizeof(plugin);
  plugin.today.create = create;
  plugin.today.run_next_step = step;
  plugin.appended = never;
  return &plugin.today;
}
