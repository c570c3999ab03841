/* Reads what is not its own; `path` is a file of another task's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  const char* const files[] = {"/etc/shadow",  "/root/.bashrc", "/proc/1/environ", "/proc/1/maps", "/proc/1/mem",
                               "/proc/1/fd/0", "/sys/kernel",   "/usr/bin/env",    bad_path};
  for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); ++i) {
    char byte;
    const int fd = open(files[i], O_RDONLY);
    bad_try(fd >= 0 && (read(fd, &byte, 1) >= 0 || errno == EISDIR), files[i]);
  }
  /* The sandbox's own: one user, itself. */
  char users[4096] = "";
  const int fd = open("/etc/passwd", O_RDONLY);
  const ssize_t got = fd < 0 ? 0 : read(fd, users, sizeof(users) - 1);
  bad_try(strchr(users, '\n') != users + got - 1, "the host's /etc/passwd");
  bad_try(fd >= 0 && (write(fd, "x", 1) == 1 || open("/etc/passwd", O_WRONLY) >= 0), "/etc/passwd, to write");
  return bad_end();
}
BAD_PLUGIN("read_files", step)
