/* Writes where nothing is its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  const char* const files[] = {"/left",
                               "/etc/left",
                               "/usr/lib/left",
                               "/freeride/left",
                               "/freeride/saved/left",
                               "/dev/left",
                               "/proc/self/oom_score_adj",
                               "/proc/self/autogroup",
                               "/proc/sys/kernel/hostname",
                               "/freeride/freeride-runner",
                               bad_path};
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
    bad_try(open(files[i], O_WRONLY | O_CREAT, 0600) >= 0, files[i]);
  }
  bad_try(unlink("/freeride/freeride-runner") == 0, "unlink the runner");
  bad_try(mknod("node", S_IFBLK | 0600, 0) == 0, "make a device");
  return bad_end();
}
BAD_PLUGIN("write_files", step)
