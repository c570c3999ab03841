// A side task in Python as a plugin: the same table, whose functions call the class in the user's file.
#pragma once

#include <string>

#include "freeride/base/result.hpp"
#include "freeride/plugin.h"

namespace freeride::runner {

/// Starts the interpreter `python` (a path) in this process and runs the file at `path`, which must hold one class that
/// inherits freeride_plugin.SideTask. Once a process, main thread; the thread holds the interpreter's lock from then
/// on, so that no thread written in Python executes but within a call. Errors: those of find_python(), and
/// kInvalidArgument with Python's own error in one line.
Result<const freeride_plugin*> open_python_plugin(const std::string& path, const std::string& python);

}  // namespace freeride::runner
