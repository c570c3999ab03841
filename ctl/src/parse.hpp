// What a user types, turned into values: sizes and parameters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

/// Bytes from "2GiB", "512M", "1.5g" or "4096". K, M, G, T (with or without "iB") are powers of 1024, "kB", "MB", "GB",
/// "TB" of 1000. Errors: kInvalidArgument (no number, unknown unit, negative, more than an int64 holds).
Result<int64_t> parse_size(const std::string& text);

/// Milliseconds from "90s", "30m", "1h", "2d" or "1.5h"; a bare number counts seconds. Errors: kInvalidArgument.
Result<int64_t> parse_span_ms(const std::string& text);

/// Parameters from "key=value" each; the value may be empty and may hold further "=".
/// Errors: kInvalidArgument (no "=", empty key, the same key twice).
Result<std::map<std::string, std::string>> parse_params(const std::vector<std::string>& texts);

/// The interpreter named by --python, as an absolute path. Errors: kInvalidArgument (no path).
Result<std::string> parse_python(const std::string& text);

}  // namespace freeride::ctl
