// Checks and limits for text that comes from outside.
#pragma once

#include <string>

#include "freeride/base/names.hpp"

namespace freeride::manager {

constexpr size_t kMaxReason = 1024;
constexpr size_t kMaxLog = 64 << 10;

/// At most `limit` bytes of `text`, cut at a character's beginning.
inline std::string bounded(std::string text, size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xc0) == 0x80) --limit;
  text.resize(limit);
  return text;
}

/// The last `limit` bytes of `text`, from a character's beginning on.
inline std::string tail(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  size_t from = text.size() - limit;
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
  return text.substr(from);
}

/// `name` as part of a sentence, whatever it holds.
inline std::string in_quotes(const std::string& name) {
  return "'" + bounded(name, 80) + "'";
}

}  // namespace freeride::manager
