/* Leaves many files in its scratch folder, and ends well. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  static int made;
  if (made == 0) bad_host->log(bad_host->context, FREERIDE_LOG_INFO, "leaves many files");
  for (int i = 0; i < 100; ++i) {
    char name[4200];
    snprintf(name, sizeof(name), "%s/%d", bad_scratch, made++);
    const int fd = open(name, O_WRONLY | O_CREAT, 0600);
    if (fd < 0) return bad_fail("open");
    close(fd);
  }
  return made < 4000 ? FREERIDE_OK : FREERIDE_FINISHED;
}
BAD_PLUGIN("many_files", step)
