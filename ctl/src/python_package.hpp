// A side task in Python that is a folder: one text that travels, is stored and is opened like a file.
#pragma once

#include <filesystem>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

/// The package in `folder` (with an __init__.py) as one Python text, the same for the same content: its modules and
/// data, without hidden files and __pycache__. Blocks on the disk. Errors: kInvalidArgument (no package, or a name that
/// cannot be imported), kExhausted (too large for a side task in Python), kNotFound, kPermission.
Result<std::string> pack_python_folder(const std::filesystem::path& folder);

/// The name of the package, and with ".py" that of the plugin: the folder's.
std::string package_name(const std::filesystem::path& folder);

}  // namespace freeride::ctl
