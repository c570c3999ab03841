// Whether a profile that came from outside makes sense: a worker's, or one out of a file.
#pragma once

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"

namespace freeride::manager {

/// Errors: kInvalidArgument: what is wrong with it, in words for people. Pure; any thread.
Status check_profile(const bus::Profile& profile);

}  // namespace freeride::manager
