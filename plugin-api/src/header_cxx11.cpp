// plugin.h as C++11 reads it.
#include "layout.h"

extern "C" size_t freeride_test_plugin_bytes_cxx11() {
  return sizeof(freeride_plugin);
}
