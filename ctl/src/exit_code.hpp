// Exit codes of freeride-ctl, the same in all programs of FreeRide. Scripts rely on them: never renumber.
#pragma once

#include "freeride/base/result.hpp"

namespace freeride::ctl {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;       ///< the operation failed
constexpr int kExitUsage = 2;        ///< wrong command line, configuration, or an argument that can never be right
constexpr int kExitUnreachable = 3;  ///< no manager or broker answers
constexpr int kExitNotFound = 4;     ///< no such task, worker, plugin or file
constexpr int kExitRejected = 5;     ///< rejected by policy, or by the plugin check

/// The exit code for an error, whoever it came from.
int exit_code(const Error& error);

}  // namespace freeride::ctl
