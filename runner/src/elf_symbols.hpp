// What a plugin exports, read from its file.
#pragma once

#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::runner {

struct Exports {
  std::vector<std::string> others;  ///< defined dynamic symbols besides the entry, in the file's order
  std::vector<std::string> unique;  ///< of them, GNU unique ones: shared between plugins, and never unmapped
};

/// Reads the dynamic symbols of an ELF file that check_plugin_file() has accepted; tolerates any other. Errors: it
/// cannot be read.
Result<Exports> read_exports(const std::string& path);

}  // namespace freeride::runner
