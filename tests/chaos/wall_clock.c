/* Preloaded into programs: adds to the wall clock, and to no other one, as many seconds as the file named by
 * CHAOS_CLOCK holds (an int64). A time namespace cannot do this: it has an offset for the monotonic clock alone. And to
 * step the host's clock would step everybody's. Times that the kernel makes (of files) stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* step_s;

__attribute__((constructor)) static void open_step(void) {
  const char* path = getenv("CHAOS_CLOCK");
  const int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  void* page = mmap(NULL, sizeof(*step_s), PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) step_s = page;
  close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == NULL) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real == NULL ? (int)syscall(SYS_clock_gettime, clock, now) : real(clock, now);
  if (result == 0 && step_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += *step_s;
  return result;
}

int gettimeofday(struct timeval* now, void* zone) {
  (void)zone;
  struct timespec exact;
  const int result = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return result;
}

time_t time(time_t* where) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (where != NULL) *where = exact.tv_sec;
  return exact.tv_sec;
}
