// The picture of a profile: drawn by matplotlib, in a Python of the user's, by a script that this program carries.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

extern const char* const kPlotScript;

/// The Python that can draw: python3 on the PATH, else /usr/bin/python3. Blocks while one is tried. Errors: kInternal
/// (none has matplotlib).
Result<std::string> find_plotter();

/// Draws `profile` (bus::Profile as JSON) into the PNG `path`. Blocks. Errors: kInternal (what the script says).
Status plot_profile(const std::string& python, const std::string& path, const nlohmann::json& profile);

}  // namespace freeride::ctl
