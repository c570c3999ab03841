// The command line of freeride-ctl.
#pragma once

#include <iosfwd>

namespace freeride::ctl {

/// Parses, acts, prints results to `out` and errors to `err` ("freeride-ctl: message; hint"). Returns the exit code.
/// Never throws.
int run(int argc, char** argv, std::ostream& out, std::ostream& err);

}  // namespace freeride::ctl
