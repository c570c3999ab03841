// Logging through spdlog's compiled library; every program calls init_log() once.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace freeride {

/// Sends log lines of this process to stderr as "time level [program] text", control characters as "?". `level` is one
/// of trace, debug, info, warn, error; an unknown name means info. Call once, before other threads start.
void init_log(const std::string& program, const std::string& level);

}  // namespace freeride
