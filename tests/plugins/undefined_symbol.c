/* Cannot be loaded: needs a function that nobody has. */
#include "tiny.h"

extern int freeride_test_function_that_nobody_has(void);

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin;
  plugin = tiny_plugin("undefined_symbol");
  plugin.param_count = (uint32_t)freeride_test_function_that_nobody_has();
  return &plugin;
}
