/* The entry returns nothing. */
#include "tiny.h"

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  return NULL;
}
