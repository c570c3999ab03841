/* Dies while it is being loaded. */
#include <stdlib.h>

#include "tiny.h"

__attribute__((constructor)) static void die(void) {
  abort();
}

FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  return NULL;
}
