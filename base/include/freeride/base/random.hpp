// Names that no other process has. Any thread.
#pragma once

#include <string>

namespace freeride {

/// 64 random bits as 16 hexadecimal digits.
std::string random_hex();

}  // namespace freeride
