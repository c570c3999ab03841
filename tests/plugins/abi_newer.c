/* From the future: exports only the entry of a later version. */
#include "tiny.h"

FREERIDE_EXPORT const void* freeride_plugin_v2(void);
FREERIDE_EXPORT const void* freeride_plugin_v2(void) {
  return NULL;
}
