/* Opens files until it may not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  int opened = 0;
  while (opened < 100000 && open("/dev/null", O_RDONLY) >= 0) ++opened;
  bad_try(opened >= 100000, "open 100000 files");
  return bad_end();
}
BAD_PLUGIN("exhaust_fds", step)
