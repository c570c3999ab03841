/* Opens every file that its process has for reading anew, for writing: that would be a file of the host's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  for (int fd = 0; fd < 1024; ++fd) {
    struct stat info;
    char path[64], what[128];
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) continue;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const int again = open(path, O_WRONLY);
    snprintf(what, sizeof(what), "open %s for writing", path);
    bad_try(again >= 0, what);
    if (again >= 0) close(again);
  }
  return bad_end();
}
BAD_PLUGIN("reopen_fds", step)
