// Checks and limits for text that comes from outside.
#pragma once

#include <cstddef>

#include "freeride/base/names.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::manager {

constexpr size_t kMaxReason = 1024;
constexpr size_t kMaxLog = 64 << 10;

}  // namespace freeride::manager
