// Opening a plugin and taking its table apart. Runs user code: only ever in the plugin's own process.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/plugin.h"

namespace freeride::runner {

using Params = std::vector<std::pair<std::string, std::string>>;

/// An opened plugin. It is never closed: the process is the unit of unloading.
struct Plugin {
  const freeride_plugin* table = nullptr;
};

/// Checks the file (check_plugin_file), opens it with RTLD_NOW | RTLD_LOCAL, calls the entry and checks the table it
/// returns; of a name in .py, see python_plugin.hpp. `given` are the user's parameters: an interpreter is among them.
/// Main thread. May throw what the plugin's entry throws. Errors, all of which are a verdict "rejected": kNotFound,
/// kInvalidArgument, kVersion (naming both versions), kExhausted.
Result<Plugin> open_plugin(const std::string& path, const Params& given = {});

/// Checks a table as returned by an entry symbol. Separate for tests.
Status check_table(const freeride_plugin* table);

/// The runner's own parameter, of a plugin that declares none of this name: "iterative" or "imperative".
constexpr const char* kInterfaceParam = "interface";

/// What the task gets: every declared parameter, the user's value or the default. Errors (kInvalidArgument): a key that
/// is not declared (lists the declared ones), a key given twice, an interface that there is not.
Result<Params> resolve_params(const freeride_plugin& table, const Params& given, bool* imperative = nullptr);

}  // namespace freeride::runner
