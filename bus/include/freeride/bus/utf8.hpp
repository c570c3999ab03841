// Text on the wire is UTF-8. What comes from outside (a task's log, a file name) may not be.
#pragma once

#include <string>
#include <string_view>

namespace freeride::bus {

/// Whether `text` is well-formed UTF-8 (RFC 3629: no surrogates, no overlong forms). Any thread; about 8 bytes a cycle
/// for ASCII.
bool is_utf8(std::string_view text);

/// `text` with every byte that is not part of well-formed UTF-8 replaced by U+FFFD. Any thread.
std::string clean_utf8(std::string_view text);

}  // namespace freeride::bus
