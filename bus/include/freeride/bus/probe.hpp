// Whether a TCP port is reached at all, before anything is said there.
#pragma once

#include <chrono>
#include <string>

#include "freeride/base/result.hpp"

namespace freeride::bus {

/// Why nobody is reached at `endpoint`, as far as one attempt of at most `patience` at each of its addresses tells;
/// fine when somebody listens. Errors: kInvalidArgument (no address, or one of a host that is not known), kTimeout.
Status probe_tcp(const std::string& endpoint, std::chrono::milliseconds patience = std::chrono::seconds(1));

}  // namespace freeride::bus
