// What else belongs to the installation: its plugins, its Python package, and what its other programs do: `plugin
// check` and `plugin describe` run plugin code, so freeride-runner does it, in processes of its own; `doctor` tries
// what a worker needs, so freeride-worker does it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

constexpr const char* kRunner = "freeride-runner";
constexpr const char* kWorker = "freeride-worker";

/// The program beside this executable, else the first on the PATH. Errors: kUnavailable (says where it was looked for).
Result<std::filesystem::path> find_program(const std::string& name);

/// The plugin of that file name that FreeRide was installed with: `make install` and the Debian package have them below
/// the programs' ../lib, `make dist` and a build folder in ../plugins. Empty: there is none.
std::filesystem::path shipped_plugin(const std::string& name);

/// File names of all of them, sorted.
std::vector<std::string> shipped_plugins();

/// The folder that holds the Python package `freeride`, for a PYTHONPATH: an installation's share/freeride/python, a
/// packed tree's python, the site-packages with a wheel's tree, a source tree's hooks/python. Errors: kNotFound (says
/// where it was looked for).
Result<std::filesystem::path> python_path();

/// Replaces this process by `name arguments…`: its output and exit code become ours. Returns only on failure.
Error exec_program(const std::string& name, const std::vector<std::string>& arguments);

}  // namespace freeride::ctl
