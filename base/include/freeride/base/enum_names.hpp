// For a closed set: one table of values and their names on the bus, read both ways.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace freeride {

template <class Enum>
struct EnumName {
  Enum value;
  const char* name;
};

/// "" for a value that is not in the table.
template <class Enum, size_t N>
constexpr const char* name_in(const EnumName<Enum> (&table)[N], Enum value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "";
}

template <class Enum, size_t N>
constexpr std::optional<Enum> value_in(const EnumName<Enum> (&table)[N], std::string_view name) {
  for (const auto& entry : table) {
    if (name == entry.name) return entry.value;
  }
  return std::nullopt;
}

}  // namespace freeride
