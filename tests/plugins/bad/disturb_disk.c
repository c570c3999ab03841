/* Makes the kernel write what others have written, and goes past the page cache. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>

#include "bad.h"

static freeride_status step(void* task) {
  (void)task;
  const int library = open("/proc/self/exe", O_RDONLY);
  bad_try(syscall(SYS_sync) == 0, "sync");
  bad_try(syscall(SYS_syncfs, library) == 0, "syncfs");
  bad_try(syscall(SYS_sync_file_range, library, 0L, 0L, 0) == 0, "sync_file_range");
  bad_try(open("/proc/self/exe", O_RDONLY | O_DIRECT) >= 0 || errno != EINVAL, "open past the page cache");
  bad_try(fcntl(library, F_SETFL, O_DIRECT) == 0, "go past the page cache later");
  bad_try(fcntl(library, F_SETOWN, 1) == 0, "have signals sent to its supervisor");
  siginfo_t info;
  memset(&info, 0, sizeof(info));
  info.si_code = SI_QUEUE;
  bad_try(syscall(SYS_rt_sigqueueinfo, 1, SIGTERM, &info) == 0, "send a signal in nobody's name");
  return bad_end();
}
BAD_PLUGIN("disturb_disk", step)
