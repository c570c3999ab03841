/* Reads what is not its own; `path` is a file of another task's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  const char* const files[] = {"/etc/shadow", "/etc/passwd",  "/root/.bashrc", "/proc/1/environ", "/proc/1/maps",
                               "/proc/1/mem", "/proc/1/fd/0", "/sys/kernel",   "/usr/bin/env",    bad_path};
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
    char byte;
    const int fd = open(files[i], O_RDONLY);
    bad_try(fd >= 0 && (read(fd, &byte, 1) >= 0 || errno == EISDIR), files[i]);
  }
  return bad_end();
}
BAD_PLUGIN("read_files", step)
