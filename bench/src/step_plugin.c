/* A side task whose step spins for a given time: what the acting path is measured with. */
#include <stdlib.h>
#include <string.h>

#include "freeride/plugin.h"

typedef struct task {
  const freeride_host* host;
  int64_t step_ns;
} task;

static freeride_status create(const freeride_host* host, const freeride_task_info* info, void** out) {
  task* made = calloc(1, sizeof *made);
  if (made == NULL) return FREERIDE_OUT_OF_MEMORY;
  made->host = host;
  for (uint32_t i = 0; i < info->param_count; ++i) {
    if (strcmp(info->params[i].key, "us") == 0) made->step_ns = strtol(info->params[i].value, NULL, 10) * 1000;
  }
  *out = made;
  return FREERIDE_OK;
}
static freeride_status nothing(void* task) {
  (void)task;
  return FREERIDE_OK;
}
static freeride_status run_next_step(void* context) {
  const task* self = context;
  const int64_t end_ns = self->host->now_ns(self->host->context) + self->step_ns;
  while (self->host->now_ns(self->host->context) < end_ns) {
  }
  return FREERIDE_OK;
}

static const freeride_param_spec kParams[] = {{"us", "50", "length of a step, microseconds"}};
static const freeride_plugin kPlugin = {
    .struct_size = sizeof(freeride_plugin),
    .abi_version = FREERIDE_ABI_VERSION,
    .name = "bench-step",
    .version = "1",
    .summary = "spins",
    .params = kParams,
    .param_count = 1,
    .create = create,
    .init = nothing,
    .start = nothing,
    .run_next_step = run_next_step,
    .pause = nothing,
    .stop = nothing,
    .destroy = free,
};

const freeride_plugin* freeride_plugin_v1(void) {
  return &kPlugin;
}
