/* Says that it has a parameter, and names none. */
#include "tiny.h"

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static const freeride_param_spec params[] = {{NULL, "1", "no key"}};
  static freeride_plugin plugin;
  plugin = tiny_plugin("bad_params");
  plugin.params = params;
  plugin.param_count = 1;
  return &plugin;
}
