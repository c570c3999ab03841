// Checks and limits for text that comes from outside.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "freeride/base/names.hpp"
#include "freeride/base/utf8.hpp"

namespace freeride::manager {

constexpr size_t kMaxReason = 1024;
constexpr size_t kMaxLog = 64 << 10;

/// "a, b, c" of at most eight names, for a sentence.
inline std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > 8 ? text + ", ..." : text;
}

}  // namespace freeride::manager
