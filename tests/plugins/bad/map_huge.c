/* Maps far more than it may have, and touches what it gets: shared, which counts as no process's data. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "bad.h"

#define BYTES (1UL << 30)
#define EACH (512UL << 10) /* a step of well under a millisecond fits any bubble */

static freeride_status step(void* task) {
  static char* memory;
  static size_t touched;
  (void)task;
  if (memory == NULL) {
    bad_try(mmap(NULL, 1UL << 42, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED,
            "map 4 TiB");
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return bad_fail("mmap");
  }
  const size_t until = touched + EACH;
  for (; touched < until; touched += 4096) memory[touched] = 1;
  if (touched < BYTES) return FREERIDE_OK;
  bad_try(1, "have 1 GiB");
  return bad_end();
}
BAD_PLUGIN("map_huge", step)
