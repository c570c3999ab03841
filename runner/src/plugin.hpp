// Opening a plugin and taking its table apart. Runs user code: only ever in the plugin's own process.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "freeride/base/result.hpp"
#include "freeride/plugin.h"

namespace freeride::runner {

using Params = std::vector<std::pair<std::string, std::string>>;

/// Checks the file (check_plugin_file), opens it with RTLD_NOW | RTLD_LOCAL, calls the entry and reads the table it
/// returns (read_table); of a name in .py, see python_plugin.hpp. `given` are the user's parameters: an interpreter is
/// among them. The plugin is never closed: the process is the unit of unloading. Main thread. May throw what the
/// plugin's entry throws. Errors, all of which are a verdict "rejected": kNotFound, kInvalidArgument, kVersion (naming
/// both versions), kExhausted.
Result<freeride_plugin> open_plugin(const std::string& path, const Params& given = {});

/// Checks a table as returned by an entry symbol, and copies it: what a table of an earlier header ends before is null.
/// A table that is as long as the first version's is accepted for ever. Separate for tests.
Result<freeride_plugin> read_table(const freeride_plugin* theirs);

/// The plugin's side of freeride.imperative/1, read as a table is; nothing when it has none. Main thread.
std::optional<freeride_imperative> imperative_extension(const freeride_plugin& plugin);

/// The runner's own parameter, of a plugin that declares none of this name: "iterative" or "imperative".
constexpr const char* kInterfaceParam = "interface";

/// What the task gets: every declared parameter, the user's value or the default. Errors (kInvalidArgument): a key that
/// is not declared (lists the declared ones), a key given twice, an interface that there is not.
Result<Params> resolve_params(const freeride_plugin& table, const Params& given, bool* imperative = nullptr);

}  // namespace freeride::runner
