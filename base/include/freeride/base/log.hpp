// Logging through spdlog's compiled library; every program calls init_log() once.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace CLI {
class App;
}

namespace freeride {

/// What a daemon's --log-level and --log-format say.
struct LogOptions {
  std::string level = "info";   ///< trace, debug, info, warn or error; an unknown name means info
  std::string format = "text";  ///< text, or json: an object a line
};

/// Declares --log-level and --log-format, the same for every daemon.
void add_log_options(CLI::App& app, LogOptions& options);

/// Sends log lines of this process to stderr. As text: "time level [program] text", local time, control characters as
/// "?". As JSON: `time` (UTC), `level`, `component` (the program), `message`, and `device`, if one is given here. A
/// message about a task, job or worker has its name as `task`, `job` or `worker`, too, where the caller says so by
/// about_task() and its like (about.hpp). Call once, before other threads start.
void init_log(const std::string& program, const LogOptions& options, const std::string& device = {});

}  // namespace freeride
