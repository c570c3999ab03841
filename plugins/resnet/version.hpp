// Whether the LibTorch that was found is the one that a training was built with.
#pragma once

#include <string>

namespace training {

/// Why not, in one line; "" where it is, or says nothing of its version. `built`: "2.11."; `found`: as LibTorch's
/// Python package says it, "2.11.0+cu130"; `where`: its library.
inline std::string version_problem(const std::string& built, const std::string& found, const std::string& where) {
  if (found.empty() || found.rfind(built, 0) == 0) return "";
  return "it was built with LibTorch " + built + "x, and " + where + " is " + found +
         ": build it with that one, or name the other's Python with --python";
}

}  // namespace training
