/* The right entry with an ABI version nobody knows. */
#include "tiny.h"

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("abi_99");
  plugin.abi_version = 99;
  return &plugin;
}
