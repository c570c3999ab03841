// Text is UTF-8 wherever it travels or is shown. What comes from outside (a task's log, a file name) may not be.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace freeride {

/// Bytes of the well-formed sequence that `text` starts with; 0: it starts with none. Well-formed is RFC 3629's: no
/// surrogates, no overlong forms, nothing past U+10FFFF.
size_t utf8_length(std::string_view text);

/// Whether `c` goes on with a character that began before it.
constexpr bool is_utf8_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u;
}

/// Whether `text` is well-formed. Any thread; about 8 bytes a cycle for ASCII.
bool is_utf8(std::string_view text);

/// `text` with every byte that is not part of well-formed UTF-8 replaced by U+FFFD. Any thread.
std::string clean_utf8(std::string_view text);

/// At most the first `limit` bytes of `text`, cut at a character's beginning.
std::string bounded(std::string text, size_t limit);
/// At most the last `limit` bytes of `text`, from a character's beginning on.
std::string tail(const std::string& text, size_t limit);

/// `name` as part of a sentence, whatever it holds.
std::string in_quotes(const std::string& name);

}  // namespace freeride
