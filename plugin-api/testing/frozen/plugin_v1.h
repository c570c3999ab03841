/* Frozen: freeride/plugin.h as it was first written, for the tests alone. Never edited: plugins built from it exist,
 * and every runner accepts them. */
/* FreeRide plugin ABI, version 1. C11 and C++; depends on nothing.
 *
 * A plugin is a shared object that exports one function, freeride_plugin_v1(). The runner, a process of its own for
 * every side task, opens the file with RTLD_NOW | RTLD_LOCAL, asks for that symbol and drives one task through the
 * paper's state machine:
 *
 *   SUBMITTED --create--> CREATED --init--> PAUSED <--start / pause--> RUNNING (run_next_step ...) --stop--> STOPPED
 *
 * Versions. The symbol's name is the version: a change that breaks a plugin gets a new symbol. Within version 1 every
 * struct starts with `struct_size`, filled in by whoever fills in the struct, and grows only at its end; read no field
 * that lies past it. Optional abilities are extensions named by strings ("freeride.yield/1"), asked for with
 * `extension`; NULL means "not there".
 *
 * Threads. [main] marks functions that are called on the runner's main thread, one at a time, never concurrently. [any]
 * may be called from any thread. A plugin may make threads, but after pause() has returned none of them may execute
 * until start(), and after stop() none may exist.
 *
 * Errors. No exception, longjmp or exit may cross this boundary. Functions return a freeride_status; before returning a
 * failure, call host->fail() with one sentence that says what happened. Only create and init may fail without
 * prejudice; a failing start, run_next_step or pause ends the task with the verdict "failed in <transition>".
 *
 * Ownership. Pointers the host passes stay the host's and are valid until the call returns, except the host table
 * itself, which stays valid until destroy() returns. Pointers the plugin returns stay the plugin's and must stay valid
 * until the process ends.
 */
#ifndef FREERIDE_PLUGIN_H
#define FREERIDE_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FREERIDE_ABI_VERSION 1u
#define FREERIDE_PLUGIN_ENTRY "freeride_plugin_v1"

#if defined(__GNUC__)
#define FREERIDE_EXPORT __attribute__((visibility("default")))
#else
#define FREERIDE_EXPORT
#endif

typedef int32_t freeride_status;
enum {
  FREERIDE_OK = 0,
  FREERIDE_FINISHED = 1,       /* run_next_step only: this was the last step, the work is done */
  FREERIDE_ERROR = -1,         /* failed; trying again is no use */
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
  /* [any] A figure of the task's own (loss, residual), shown by freeride-ctl and on the bus. At most 8 names of at most
   * 23 bytes. */
  void (*metric)(void* context, const char* name, double value);
  /* [main] Why the transition that is about to return a failure fails: one sentence. The last call wins. */
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

/* What a task is made from. Every declared parameter is in `params`, with its default where the user gave none;
 * undeclared ones never arrive: the runner rejects the task and lists the declared ones. */
typedef struct freeride_task_info {
  uint32_t struct_size;
  uint32_t param_count;
  const freeride_param* params;
  const char* name;        /* the task's name */
  const char* device;      /* "cpu-N" or a GPU's UUID (then the process sees that GPU as device 0) */
  const char* scratch_dir; /* a folder of the task's own, writable; its content survives a restart of the task */
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
  /* [main] CreateSideTask: SUBMITTED -> CREATED. Makes *task and its context in host memory; touches no GPU. On failure
   * *task is ignored: the plugin has freed what it made. */
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

/* The one exported symbol. [main] Called once; never NULL. */
typedef const freeride_plugin* (*freeride_plugin_v1_fn)(void);
FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* FREERIDE_PLUGIN_H */
