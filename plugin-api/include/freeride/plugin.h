/* FreeRide plugin ABI, version 1. C11 and C++; depends on nothing.
 *
 * A plugin is a shared object that exports one function, freeride_plugin_v1(). Each side task has a process of its own,
 * the runner. It opens the file with RTLD_NOW | RTLD_LOCAL, asks for that symbol, and drives one task through the
 * paper's state machine:
 *
 *   SUBMITTED --create--> CREATED --init--> PAUSED <--start / pause--> RUNNING (run_next_step ...) --stop--> STOPPED
 *
 * Versions. The symbol's name is the version: a change that breaks a plugin gets a new symbol. Within version 1 every
 * struct starts with `struct_size`, which is set by whoever fills in the struct. A struct grows only at its end. Read
 * no field beyond `struct_size`: FREERIDE_HAS() tells. A function that a plugin's table is too short for is NULL to the
 * host. A host accepts for ever what the first version's header had, in every struct. Optional abilities are extensions
 * with a name ("freeride.yield/1"). `extension` is asked for them; NULL means "not there".
 *
 * Threads. [main] marks functions that are called on the runner's main thread, one at a time, never concurrently. [any]
 * functions may be called from any thread. [workload] is the thread of the imperative interface. A plugin may make
 * threads. After pause() has returned none of them may execute until start(), and after stop() none may exist.
 *
 * Errors. No exception, longjmp or exit may cross this boundary. Functions return a freeride_status. Before returning a
 * failure, call host->fail() with one sentence that says what happened. If create or init fails, the
 * task does not start. A start, run_next_step or pause that fails ends the task with the verdict
 * "failed in <transition>".
 *
 * Ownership. Pointers that the host passes stay the host's, and are valid until the call returns. The host table itself
 * stays valid until destroy() returns. Pointers that the plugin returns stay the plugin's, and must stay valid until
 * the process ends.
 */
#ifndef FREERIDE_PLUGIN_H
#define FREERIDE_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FREERIDE_ABI_VERSION 1u
#define FREERIDE_PLUGIN_ENTRY "freeride_plugin_v1"

/* Extensions, each described with its struct below.
 *
 *   name                   | freeride_plugin.extension answers | freeride_host.extension answers
 *   freeride.state/1       | freeride_state                    | NULL
 *   freeride.yield/1       | nothing: it is not asked          | freeride_yield; NULL on an older host
 *   freeride.imperative/1  | freeride_imperative               | freeride_gate
 *
 * A plugin must work without yield points. */
#define FREERIDE_EXTENSION_YIELD "freeride.yield/1"
#define FREERIDE_EXTENSION_STATE "freeride.state/1"
#define FREERIDE_EXTENSION_IMPERATIVE "freeride.imperative/1"

#if defined(__GNUC__)
#define FREERIDE_EXPORT __attribute__((visibility("default")))
#else
#define FREERIDE_EXPORT
#endif

/* Whether the struct of `type` at `pointer` is long enough to have `field`. Ask before you read anything that the first
 * version's header does not have. */
#define FREERIDE_HAS(type, pointer, field) ((pointer)->struct_size >= offsetof(type, field) + sizeof((pointer)->field))

typedef int32_t freeride_status;
enum {
  FREERIDE_OK = 0,
  FREERIDE_FINISHED = 1,  /* run_next_step only: this was the last step, the work is done */
  FREERIDE_ABANDONED = 2, /* a yield point's answer, and then run_next_step's: the step was given up in the middle */
  FREERIDE_ERROR = -1,    /* failed; trying again is no use */
  FREERIDE_BAD_PARAMETER = -2, /* create only: a parameter's value makes no sense; host->fail() says which */
  FREERIDE_OUT_OF_MEMORY = -3, /* host or device memory */
  FREERIDE_UNAVAILABLE = -4 /* something needed is not there now (a device, a file); trying again later can succeed */
};

enum { FREERIDE_LOG_DEBUG = 0, FREERIDE_LOG_INFO = 1, FREERIDE_LOG_WARN = 2, FREERIDE_LOG_ERROR = 3 };

/* What the runner offers the plugin. */
typedef struct freeride_host {
  uint32_t struct_size;
  uint32_t abi_version;
  void* context; /* pass back as the first argument */
  /* [any] One line into the task's log. `text` is UTF-8. */
  void (*log)(void* context, int32_t level, const char* text);
  /* [any] Sets a figure of the task's own (loss, residual), which freeride-ctl and the bus show. At most 8 names of at
   * most 23 bytes. */
  void (*metric)(void* context, const char* name, double value);
  /* [main] Says in one sentence why the transition that is about to return a failure fails. The last call wins. */
  void (*fail)(void* context, const char* text);
  /* [any] CLOCK_MONOTONIC, ns. */
  int64_t (*now_ns)(void* context);
  /* [any] The host's side of an extension, or NULL. */
  const void* (*extension)(void* context, const char* name);
} freeride_host;

/* A parameter given by the user with --param key=value. */
typedef struct freeride_param {
  const char* key;
  const char* value;
} freeride_param;

/* What a task is made from. Every declared parameter is in `params`, with its default if the user gave none. An
 * undeclared one never arrives: the runner rejects the task and lists the declared ones. */
typedef struct freeride_task_info {
  uint32_t struct_size;
  uint32_t param_count;
  const freeride_param* params;
  const char* name;   /* the task's name */
  const char* device; /* "cpu-N" or a GPU's UUID (then the process sees that GPU as device 0) */
  /* A writable folder of the task's own. After a restart of the task on the same host its content is there again,
   * unless its worker was killed. */
  const char* scratch_dir;
} freeride_task_info;

/* A parameter the plugin understands. */
typedef struct freeride_param_spec {
  const char* key;
  const char* default_value; /* text; "" is a value too */
  const char* help;          /* one line */
} freeride_param_spec;

/* The plugin: constant data and functions. Filled in once, before freeride_plugin_v1() returns it. */
typedef struct freeride_plugin {
  uint32_t struct_size;
  uint32_t abi_version; /* FREERIDE_ABI_VERSION it was compiled with */
  const char* name;     /* e.g. "pagerank"; [a-z0-9_-]+ */
  const char* version;  /* of the plugin, free text */
  const char* summary;  /* one line */
  const freeride_param_spec* params;
  uint32_t param_count;
  uint32_t reserved;
  /* [main] CreateSideTask: SUBMITTED -> CREATED. Makes *task and its context in host memory; touches no GPU. After a
   * failure *task is ignored, so the plugin must have freed what it made. */
  freeride_status (*create)(const freeride_host* host, const freeride_task_info* info, void** task);
  /* [main] InitSideTask: CREATED -> PAUSED. Loads the context into the device's memory; returns when that is done and
   * nothing executes. */
  freeride_status (*init)(void* task);
  /* [main] StartSideTask: PAUSED -> RUNNING. Called at the begin of every bubble: keep it short. */
  freeride_status (*start)(void* task);
  /* [main] RunNextStep: one step, in RUNNING. Returns when all work of the step, on the GPU too, is done. */
  freeride_status (*run_next_step)(void* task);
  /* [main] PauseSideTask: RUNNING -> PAUSED. Called at the end of every bubble, between steps. On return nothing
   * executes. */
  freeride_status (*pause)(void* task);
  /* [main] StopSideTask: CREATED, PAUSED or RUNNING -> STOPPED. Gives back device memory, writes final results. Not
   * called on a kill. */
  freeride_status (*stop)(void* task);
  /* [main] Frees the task. Called once after stop(), also when stop() or init() failed. */
  void (*destroy)(void* task);
  /* [any] The plugin's side of an extension, or NULL. May itself be NULL. */
  const void* (*extension)(const char* name);
} freeride_plugin;

/* freeride.yield/1: yield points, for steps longer than a short bubble. The plugin calls yield_point() between two
 * pieces of a step (layers, blocks). At that moment nothing of the task may execute, on the GPU either. The host knows
 * how long the next piece took in earlier steps. If it fits the lease, yield_point() returns at once. Otherwise it
 * blocks, and returns in a later bubble. Meanwhile the task is PAUSED; pause() and start() are not called. */
typedef struct freeride_yield {
  uint32_t struct_size;
  uint32_t reserved;
  /* [main] `context` is the host's. Within run_next_step only; anywhere else it returns FREERIDE_OK at once.
   *
   * FREERIDE_OK: continue. FREERIDE_ABANDONED: the task is to stop or to save its state, which happens between steps.
   * Undo what the step has changed, if that matters. Then return FREERIDE_ABANDONED from run_next_step, without
   * executing more. The step does not count. If the task continues, run_next_step is called again. */
  freeride_status (*yield_point)(void* context);
  /* [main] The same for a piece that has been queued on a GPU, and need not be done. The host calls `wait` with
   * `argument` and `all`. With all = 1, `wait` blocks until all pieces are done. With all = 0 it blocks until every
   * piece but the one queued last is done.
   *
   * If the next piece, too, surely fits the lease, the host does not wait for the last one. So the GPU does not run out
   * of work. Otherwise the host waits for all, and does as yield_point(). A failure of `wait` ends the call with that
   * status.
   *
   * Appended to freeride.yield/1. If struct_size ends before it, it is not there: wait, then call yield_point(). */
  freeride_status (*yield_queued)(void* context, freeride_status (*wait)(void* argument, int32_t all), void* argument);
} freeride_yield;

/* freeride.imperative/1: the imperative interface, for work that is not cut into steps. This is the plugin's side. It
 * is used for a task that was loaded with the parameter interface=imperative. The runner takes that parameter for
 * itself, unless the plugin declares one of that name. The run_next_step of such a task is never called. */
typedef struct freeride_imperative {
  uint32_t struct_size;
  uint32_t reserved;
  /* [workload] RunGpuWorkload: all of the work. It is called once, after init, in a thread of its own. While the task
   * is paused, the operating system stops every thread of the process, wherever it is. Returns FREERIDE_OK or
   * FREERIDE_FINISHED when the work is done, and FREERIDE_ABANDONED when pass() has returned that. A failure ends the
   * task. */
  freeride_status (*run_gpu_workload)(void* task);
  /* [workload] PrepareGpuWorkload: what a thread has to do for itself before it computes. It is called once in that
   * thread, after init and under the init lease, so before any bubble. May be NULL; an older host does not call it. A
   * failure counts as init's. */
  freeride_status (*prepare_gpu_workload)(void* task);
} freeride_imperative;

/* The host's side, freeride_host.extension: the launch throttle. */
typedef struct freeride_gate {
  uint32_t struct_size;
  uint32_t reserved;
  /* [workload] `context` is the host's. Call it whenever the GPU has done what was launched, about every millisecond or
   * more often. What is on the GPU when a bubble ends cannot be stopped, and is overrun. Blocks from the end of a
   * bubble until the next one. FREERIDE_ABANDONED: the task is to stop; return that from run_gpu_workload. In other
   * threads it returns FREERIDE_OK at once. */
  freeride_status (*pass)(void* context);
} freeride_gate;

/* freeride.state/1: a task's progress, handed to the process that continues the task. That process has another content
 * of the plugin (`freeride-ctl load --replace`), or the same one, started again. The bytes and their version are the
 * plugin's own: the host keeps them and looks at neither. Only a plugin of the same name gets them. */

/* Where save() puts its bytes; the host's. */
typedef struct freeride_state_sink {
  uint32_t struct_size;
  uint32_t reserved;
  void* context; /* pass back as the first argument */
  /* [main] Appends `size` bytes, which the host copies before it returns. FREERIDE_OUT_OF_MEMORY if all bytes together
   * would be more than 512 MiB: then return it. */
  freeride_status (*write)(void* context, const void* data, uint64_t size);
} freeride_state_sink;

typedef struct freeride_state {
  uint32_t struct_size;
  uint32_t version; /* of the bytes that save() writes; goes with them */
  /* [main] SaveState, in PAUSED, under a lease of its own, so outside of every bubble. It must change nothing:
   * afterwards the task is either stopped, or continues as if save() had not been called. If it fails, nothing is
   * saved, and no verdict follows. */
  freeride_status (*save)(void* task, const freeride_state_sink* sink);
  /* [main] RestoreState, once, after init() has returned and before the first start(), within init()'s lease. `version`
   * and the `size` bytes are as saved, perhaps by an older or newer content of this plugin. Refuse what you do not
   * understand, with FREERIDE_ERROR and host->fail(). A failure ends this task. The one that it was to replace
   * continues from the same bytes. */
  freeride_status (*restore)(void* task, uint32_t version, const void* data, uint64_t size);
} freeride_state;

/* The one exported symbol. [main] Called once; never NULL. */
typedef const freeride_plugin* (*freeride_plugin_v1_fn)(void);
FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* FREERIDE_PLUGIN_H */
