/* For tests: the driver of played_cuda.cpp. It has no GPU: a stream is a thread, and a kernel is a pause. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What has been submitted, in the order of submission. Times are CLOCK_MONOTONIC; 0: not yet. */
typedef struct played_record {
  char what[24]; /* "kernel", "copy", "graph", "signal" */
  int64_t submitted_ns, begun_ns, ended_ns;
} played_record;

/* The newest `most` of them; returns how many there are in all. */
int played_records(played_record* records, int most);
/* The largest sum of what kernels take that were submitted and not done, since this was last called. */
int64_t played_most_queued_ns(void);
/* A kernel takes so long from now on. */
void played_takes(void* kernel, int64_t ns);
/* Called from within each launch that is not made by it; null: nobody. */
void played_launching(void (*called)(void));
/* Calls of cuPlayedSecret, which only cuGetProcAddress knows. */
int played_secrets(void);
/* From now on each submission fails with this code; 0: none does. */
void played_fail(int code);

#ifdef __cplusplus
}
#endif
