/* Writes into its scratch folder until it is full. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  static char block[1 << 20];
  memset(block, 1, sizeof(block));
  char name[4200];
  snprintf(name, sizeof(name), "%s/heap", bad_scratch);
  const int fd = open(name, O_WRONLY | O_CREAT, 0600);
  for (int i = 0; i < 4096; ++i) {
    if (write(fd, block, sizeof(block)) < 0) return bad_fail("write");
  }
  bad_try(1, "write 4 GiB");
  return bad_end();
}
BAD_PLUGIN("fill_scratch", step)
