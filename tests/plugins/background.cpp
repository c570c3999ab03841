// Pauses in words only: a thread made in InitSideTask goes on executing after PauseSideTask, and exists after
// StopSideTask.
#include <thread>

#include "tiny.h"

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin = tiny_plugin("background");
  plugin.init = [](void*) -> freeride_status {
    std::thread([] {
      for (volatile unsigned turning = 1; turning;) {
      }
    }).detach();
    return FREERIDE_OK;
  };
  return &plugin;
}
