// What a plugin says of itself, asked in a process of its own.
#pragma once

#include <string>
#include <vector>

#include "freeride/base/result.hpp"
#include "plugin.hpp"

namespace freeride::runner {

struct Description {
  struct Param {
    std::string key, default_value, help;
  };
  std::string name, version, summary;
  std::vector<Param> params;
};

/// Loads the plugin, with the user's parameters, in a child process, which a plugin that crashes or hangs takes along,
/// and asks for its table. Blocks at most about `timeout_s`. Errors: those of open_plugin(), and kInvalidArgument when
/// loading ended or hung the child.
Result<Description> describe_plugin(const std::string& path, const Params& given, int timeout_s = 30);

/// The same, printed to stdout (or the error to stderr) as "text" or "json". True when it could be described.
bool describe(const std::string& path, const Params& given, const std::string& format);

}  // namespace freeride::runner
