/* Says that its table ends before the functions. */
#include "tiny.h"

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("small_struct");
  plugin.struct_size = 16;
  return &plugin;
}
