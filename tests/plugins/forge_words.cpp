// In its first step writes the bytes in <scratch>/words into the pipe of the last words, then executes for ever.
#include <fstream>
#include <iterator>
#include <string>

#include <unistd.h>

#include "tiny.h"

namespace {

constexpr int kLastWordsFd = 3;  // of the plugin's process
std::string words;

freeride_status create(const freeride_host* host, const freeride_task_info* info, void** task) {
  std::ifstream file(std::string(info->scratch_dir) + "/words", std::ios::binary);
  words.assign(std::istreambuf_iterator<char>(file), {});
  return tiny_create(host, info, task);
}

freeride_status step(void*) {
  if (write(kLastWordsFd, words.data(), words.size()) != static_cast<ssize_t>(words.size())) return FREERIDE_ERROR;
  for (volatile unsigned turning = 1; turning;) {
  }
  return FREERIDE_OK;
}

}  // namespace

extern "C" FREERIDE_EXPORT const freeride_plugin* freeride_plugin_v1(void) {
  static freeride_plugin plugin = tiny_plugin("forge_words");
  plugin.create = create;
  plugin.run_next_step = step;
  return &plugin;
}
