// What can be told of a plugin file without running any of its code: an ELF shared object for this machine that exports
// the entry symbol. Used wherever a file enters (ctl, manager, worker), so that all of them say the same.
#pragma once

#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride {

/// Largest plugin that travels over the command socket, bytes.
constexpr size_t kMaxPluginBytes = 256u << 20;

/// Checks `bytes` (a whole file) and names it `name` in the messages. Reads only inside `bytes`, whatever they hold;
/// any thread. Errors, all kInvalidArgument or kVersion: empty or too large; not an ELF file; another machine or word
/// size; not a shared object; no `freeride_plugin_v1` among its dynamic symbols (kVersion, naming the version found,
/// when another `freeride_plugin_v<N>` is there).
Status check_plugin_file(std::string_view bytes, const std::string& name);

}  // namespace freeride
