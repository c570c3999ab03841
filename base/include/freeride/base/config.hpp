// One TOML file, with environment and flags above it, for every option of every program.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride {

/// Gives every long option of `app` (e.g. --grace-ms) three sources, the later winning: key `grace_ms` in table
/// [section] of the TOML file, environment variable FREERIDE_WORKER_GRACE_MS (of section "worker"), else
/// FREERIDE_GRACE_MS, the flag. [web]'s listen has the longer variable only. Call after the options are declared and
/// before parsing. `file` empty: $FREERIDE_CONFIG, else /etc/freeride/freeride.toml if it exists, else no file.
/// A list in the file counts as its values with ':' between them. Errors (kInvalidArgument): the file cannot be read or
/// parsed (with line); it has a section of no program; [section] has a key that is no option, or a value that its
/// option does not take.
Status bind_config(CLI::App& app, const std::string& section, std::filesystem::path file = {});

/// The texts of a section that is no program's, by key: of [accounts], name = ["text", ...]. Of the file that
/// bind_config() reads. Errors: as there, and kInvalidArgument for what is no list of texts.
Result<std::map<std::string, std::vector<std::string>>> read_lists(const std::string& section,
                                                                   std::filesystem::path file = {});

/// What [section] of `file` gives to `key`, as bind_config() would; nothing: it does not say. Errors: as read_lists().
Result<std::optional<std::string>> read_setting(const std::string& section, const std::string& key,
                                                std::filesystem::path file = {});

/// A daemon's start: bind_config(), then the command line. Empty: continue. Otherwise the exit code to end with: 0
/// after
/// --help and --version, 2 if something is wrong. That has been printed as "program: what; what to do".
std::optional<int> parse_options(CLI::App& app, const std::string& program, const std::string& section, int argc,
                                 char** argv);

/// Checks that an option's value is a number from low to high. CLI::Range(double, double) lets "nan" pass.
CLI::Validator within(double low, double high);

/// Checks that an option's value is a whole number from low to high, and says so in those words. CLI::NonNegativeNumber
/// tells of a limit of 309 digits.
CLI::Validator whole(int64_t low, int64_t high);

}  // namespace freeride
