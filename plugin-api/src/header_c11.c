/* plugin.h as C11 reads it; the function is what the test links to see that the object is there. */
#include "layout.h"

size_t freeride_test_plugin_bytes_c11(void);
size_t freeride_test_plugin_bytes_c11(void) {
  return sizeof(freeride_plugin);
}
