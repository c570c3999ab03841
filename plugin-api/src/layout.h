/* The ABI of version 1, frozen: an offset that changes here breaks plugins already built. Lines are only ever added at
 * the end of a struct's list. Included by a C11, a C++11 and a C++17 source. 64-bit, the only machines FreeRide runs
 * on. */
#ifndef FREERIDE_PLUGIN_LAYOUT_H
#define FREERIDE_PLUGIN_LAYOUT_H

#include <stddef.h>

#include "freeride/plugin.h"

#ifdef __cplusplus
#define LAYOUT(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE_AT_LEAST(type, bytes) static_assert(sizeof(type) >= (bytes), #type)
#define SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define LAYOUT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE_AT_LEAST(type, bytes) _Static_assert(sizeof(type) >= (bytes), #type)
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif

LAYOUT(freeride_host, struct_size, 0);
LAYOUT(freeride_host, abi_version, 4);
LAYOUT(freeride_host, context, 8);
LAYOUT(freeride_host, log, 16);
LAYOUT(freeride_host, metric, 24);
LAYOUT(freeride_host, fail, 32);
LAYOUT(freeride_host, now_ns, 40);
LAYOUT(freeride_host, extension, 48);
SIZE_AT_LEAST(freeride_host, 56);

LAYOUT(freeride_param, key, 0);
LAYOUT(freeride_param, value, 8);
SIZE(freeride_param, 16); /* stands in arrays: can never grow */

LAYOUT(freeride_task_info, struct_size, 0);
LAYOUT(freeride_task_info, param_count, 4);
LAYOUT(freeride_task_info, params, 8);
LAYOUT(freeride_task_info, name, 16);
LAYOUT(freeride_task_info, device, 24);
LAYOUT(freeride_task_info, scratch_dir, 32);
SIZE_AT_LEAST(freeride_task_info, 40);

LAYOUT(freeride_param_spec, key, 0);
LAYOUT(freeride_param_spec, default_value, 8);
LAYOUT(freeride_param_spec, help, 16);
SIZE(freeride_param_spec, 24); /* stands in arrays: can never grow */

LAYOUT(freeride_plugin, struct_size, 0);
LAYOUT(freeride_plugin, abi_version, 4);
LAYOUT(freeride_plugin, name, 8);
LAYOUT(freeride_plugin, version, 16);
LAYOUT(freeride_plugin, summary, 24);
LAYOUT(freeride_plugin, params, 32);
LAYOUT(freeride_plugin, param_count, 40);
LAYOUT(freeride_plugin, reserved, 44);
LAYOUT(freeride_plugin, create, 48);
LAYOUT(freeride_plugin, init, 56);
LAYOUT(freeride_plugin, start, 64);
LAYOUT(freeride_plugin, run_next_step, 72);
LAYOUT(freeride_plugin, pause, 80);
LAYOUT(freeride_plugin, stop, 88);
LAYOUT(freeride_plugin, destroy, 96);
LAYOUT(freeride_plugin, extension, 104);
SIZE_AT_LEAST(freeride_plugin, 112);

LAYOUT(freeride_yield, struct_size, 0);
LAYOUT(freeride_yield, reserved, 4);
LAYOUT(freeride_yield, yield_point, 8);
LAYOUT(freeride_yield, yield_queued, 16);
SIZE_AT_LEAST(freeride_yield, 24);

LAYOUT(freeride_imperative, struct_size, 0);
LAYOUT(freeride_imperative, reserved, 4);
LAYOUT(freeride_imperative, run_gpu_workload, 8);
LAYOUT(freeride_imperative, prepare_gpu_workload, 16);
SIZE_AT_LEAST(freeride_imperative, 24);

LAYOUT(freeride_gate, struct_size, 0);
LAYOUT(freeride_gate, reserved, 4);
LAYOUT(freeride_gate, pass, 8);
SIZE_AT_LEAST(freeride_gate, 16);

LAYOUT(freeride_state_sink, struct_size, 0);
LAYOUT(freeride_state_sink, reserved, 4);
LAYOUT(freeride_state_sink, context, 8);
LAYOUT(freeride_state_sink, write, 16);
SIZE_AT_LEAST(freeride_state_sink, 24);

LAYOUT(freeride_state, struct_size, 0);
LAYOUT(freeride_state, version, 4);
LAYOUT(freeride_state, save, 8);
LAYOUT(freeride_state, restore, 16);
SIZE_AT_LEAST(freeride_state, 24);

#endif
