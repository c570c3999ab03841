// For tests: a folder of one's own that goes away.
#pragma once

#include "freeride/base/testing/temp_folder.hpp"

namespace freeride::worker::testing {
using freeride::testing::TempFolder;
}  // namespace freeride::worker::testing
