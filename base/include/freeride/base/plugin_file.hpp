// What can be told of a plugin file without running any of its code. A plugin is an ELF shared object for this machine
// that exports the entry symbol; a file named *.py is a side task in Python. Used wherever a file enters (ctl, manager,
// worker), so that all of them say the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"

namespace freeride {

/// Largest plugin that travels over the command socket, bytes.
constexpr size_t kMaxPluginBytes = 256u << 20;

/// Most dynamic symbols of a plugin that are looked at: a file can claim billions in a few bytes.
constexpr uint64_t kMaxPluginSymbols = 1u << 20;

/// Largest side task in Python: a text that somebody wrote.
constexpr size_t kMaxScriptBytes = 4u << 20;

/// Whether a file of this name is taken for a side task in Python.
inline bool is_script_name(std::string_view name) {
  return name.size() > 3 && name.substr(name.size() - 3) == ".py";
}

/// Whether a file of this name is taken for a plugin: .so or .py, not hidden.
inline bool is_plugin_file_name(std::string_view name) {
  return name.size() > 3 && name[0] != '.' && (name.substr(name.size() - 3) == ".so" || is_script_name(name));
}

/// How a content is called where it is stored under its SHA-256: ".so" or ".py". Of any that has been checked.
const char* plugin_extension(std::string_view bytes);

/// Checks `bytes` (a whole file) and names it `name` in the messages. Reads only inside `bytes`, and each of
/// them once, whatever they hold; any thread.
///
/// Errors, kInvalidArgument: empty or too large; not an ELF file; another machine or word size; not a shared object;
/// more than one table of dynamic symbols, or more symbols than kMaxPluginSymbols; no `freeride_plugin_v1` among them.
/// kVersion, naming the version found: another `freeride_plugin_v<N>` is there instead. Of a script: empty or too
/// large; not text; no use of freeride_plugin.
Status check_plugin_file(std::string_view bytes, const std::string& name);

}  // namespace freeride
