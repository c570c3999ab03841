// Leaves a thread behind that sleeps, as libraries do that keep threads for later. It executes once, for some
// milliseconds: as much as a clock may be charged for what somebody else has done.
#include <unistd.h>

#include <ctime>
#include <thread>

#include "tiny.h"

static void linger() {
  usleep(20'000);
  timespec executed{};
  while (executed.tv_nsec < 5'000'000) clock_gettime(CLOCK_THREAD_CPUTIME_ID, &executed);
  pause();
}

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin = tiny_plugin("lingering");
  plugin.init = [](void*) -> freeride_status {
    std::thread(linger).detach();
    return FREERIDE_OK;
  };
  return &plugin;
}
