// One TOML file, with environment and flags above it, for every option of every program.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride {

/// Gives every long option of `app` (e.g. --grace-ms) three sources, the later winning: key `grace_ms` in table
/// [section] of the TOML file, environment variable FREERIDE_GRACE_MS, the flag. Call after the options are declared
/// and before parsing. `file` empty: $FREERIDE_CONFIG, else /etc/freeride/freeride.toml if it exists, else no file.
/// Errors (kInvalidArgument): the file cannot be read or parsed (with line), or [section] holds a key that is no
/// option.
Status bind_config(CLI::App& app, const std::string& section, std::filesystem::path file = {});

/// Checks that an option's value is a number from low to high. CLI::Range(double, double) lets "nan" pass.
CLI::Validator within(double low, double high);

}  // namespace freeride
