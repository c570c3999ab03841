// Default visibility and a template's static: exports more than its entry, a GNU unique symbol among it.
#include "tiny.h"

template <class T>
struct Shared {
  static inline T value = 0;
};

int& shared_value() {
  return Shared<int>::value;
}

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin = tiny_plugin("unique");
  plugin.run_next_step = [](void*) -> freeride_status {
    ++shared_value();
    return FREERIDE_OK;
  };
  return &plugin;
}
