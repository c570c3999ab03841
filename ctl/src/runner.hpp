// `plugin check` and `plugin describe`: they run plugin code, so the installed freeride-runner does it, in processes of
// its own.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

/// freeride-runner beside this executable, else the first on the PATH. Errors: kNotFound (says where it was looked
/// for).
Result<std::filesystem::path> find_runner();

/// Replaces this process by `freeride-runner arguments…`: its output and exit code become ours. Returns only on
/// failure.
Error exec_runner(const std::vector<std::string>& arguments);

}  // namespace freeride::ctl
