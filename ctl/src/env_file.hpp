// Files that systemd's EnvironmentFile= reads: lines of NAME=VALUE, in which a value may have quotes and several lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

struct EnvSetting {
  std::string name, value;
};

/// What `text` gives to `name`, the last line winning; empty: nothing.
std::string env_value(std::string_view text, std::string_view name);

/// `text` with these settings. A line that says the same already stays as it is, one with another value is replaced at
/// its place, and further ones of that name are left out; what is missing comes at the end. All else stays, byte by
/// byte. Errors: kInvalidArgument (`where`, the file's name for messages, ends within a quote or after a backslash:
/// what is added would be part of it).
Result<std::string> with_env_settings(std::string_view text, const std::vector<EnvSetting>& settings,
                                      const std::string& where);

}  // namespace freeride::ctl
