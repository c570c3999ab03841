/* No run_next_step. */
#include "tiny.h"

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("missing_function");
  plugin.run_next_step = NULL;
  return &plugin;
}
