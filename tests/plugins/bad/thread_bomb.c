/* Makes threads until there are no more. */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "bad.h"

static void* wait(void* unused) {
  for (;;) pause();
  return unused;
}
static freeride_status step(void* task) {
  (void)task;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 65536);
  for (int i = 0; i < 100000; ++i) {
    pthread_t thread;
    errno = pthread_create(&thread, &small, wait, NULL);
    if (errno != 0) return bad_fail("pthread_create");
  }
  return FREERIDE_OK;
}
BAD_PLUGIN("thread_bomb", step)
