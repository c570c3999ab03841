// Checks and limits for text that comes from outside.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace freeride::manager {

constexpr size_t kMaxName = 64;
constexpr size_t kMaxReason = 1024;
constexpr size_t kMaxLog = 64 << 10;

/// Task names become file names and topics.
inline bool is_task_name(const std::string& name) {
  return !name.empty() && name.size() <= kMaxName && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; });
}

/// Names of jobs, workers, users, files: short and printable.
inline bool is_plain(const std::string& text, size_t limit = 128) {
  return !text.empty() && text.size() <= limit &&
         std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

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
