// Leaves a thread behind that sleeps, as libraries do that keep threads for later.
#include <unistd.h>

#include <thread>

#include "tiny.h"

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin = tiny_plugin("lingering");
  plugin.init = [](void*) -> freeride_status {
    std::thread([] { pause(); }).detach();
    return FREERIDE_OK;
  };
  return &plugin;
}
