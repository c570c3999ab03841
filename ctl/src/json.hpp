// The wire's structs as JSON, for --format json: the same names as on the wire (bus/WIRE.md).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace freeride::ctl {

template <class T>
nlohmann::json to_json(const T& value);

namespace detail {
template <class T>
nlohmann::json json_of(const std::vector<T>& items) {
  auto out = nlohmann::json::array();
  for (const T& item : items) out.push_back(to_json(item));
  return out;
}
template <class T>
nlohmann::json json_of(const std::map<std::string, T>& items) {
  auto out = nlohmann::json::object();
  for (const auto& [key, item] : items) out[key] = to_json(item);
  return out;
}
template <class T>
nlohmann::json json_of(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
    return value;
  } else {
    auto out = nlohmann::json::object();
    T::fields(value, [&out](const char* name, const auto& member) { out[name] = to_json(member); });
    return out;
  }
}
}  // namespace detail

template <class T>
nlohmann::json to_json(const T& value) {
  return detail::json_of(value);
}

/// One line; text that is no UTF-8 (a task's log may hold anything) gets replacement characters instead of failing.
inline std::string dump(const nlohmann::json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace freeride::ctl
