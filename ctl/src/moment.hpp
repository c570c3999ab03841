// Moments and lengths of time as people write them. Pure functions but for the time zone; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

/// A moment, ns since 1970, from "03:14" or "03:14:05" (the last such time before `now_ns`, by this host's time zone),
/// "2026-11-23T03:14[:05][Z]" (a space counts as T; Z: UTC), "10m ago", or "now". Errors: kInvalidArgument.
Result<int64_t> parse_moment(const std::string& text, int64_t now_ns);

/// A length, ns, from "90s", "10m", "2h" or "1d"; a plain number is seconds. Errors: kInvalidArgument.
Result<int64_t> parse_length(const std::string& text);

/// "2026-11-23 03:14:05.123", by this host's time zone.
std::string moment_text(int64_t wall_ns);

}  // namespace freeride::ctl
