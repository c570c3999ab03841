// Files that users drop or send: judged by ctl, manager and worker before anything opens them.
#include <string_view>

#include "freeride/base/plugin_file.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"side.so", "side.py"}) {
    const auto checked = freeride::check_plugin_file(bytes, name);
    freeride::fuzz::must(checked.ok() || !checked.error().message.empty());
  }
  freeride::fuzz::must(freeride::plugin_extension(bytes) != nullptr);
  return 0;
}
