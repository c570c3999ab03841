// `freeride-runner check`: the whole contract, once, with words for every step of it. A newcomer's first tool.
#pragma once

#include <string>

#include "plugin.hpp"

namespace freeride::runner {

struct CheckOptions {
  std::string plugin;
  Params params;
  std::string device = "cpu-0";
  uint64_t steps = 50;
  int timeout_s = 60;           ///< of each transition, and of all steps together
  std::string format = "text";  ///< or "json"
};

/// Runs the plugin in processes of its own, prints one line per check to stdout (or a JSON object), and says whether
/// there was no problem. Warnings are no problems. Leaves nothing behind.
bool check_plugin(const CheckOptions& options);

}  // namespace freeride::runner
