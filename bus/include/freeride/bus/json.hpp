// Any wire type as JSON, by its list of fields: the same names as on the wire.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "freeride/base/utf8.hpp"
#include "freeride/bus/codec.hpp"

namespace freeride::bus {

template <class T>
nlohmann::json to_json(const T& message);

namespace detail {

template <class T>
nlohmann::json json_value(const std::vector<T>& value);
template <class T>
nlohmann::json json_value(const std::map<std::string, T>& value);

template <class T>
nlohmann::json json_value(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return clean_utf8(value);  // nlohmann::json throws on anything else
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    return to_json(value);
  }
}

template <class T>
nlohmann::json json_value(const std::vector<T>& value) {
  nlohmann::json array = nlohmann::json::array();
  for (const T& element : value) array.push_back(json_value(element));
  return array;
}

template <class T>
nlohmann::json json_value(const std::map<std::string, T>& value) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [key, element] : value) object[clean_utf8(key)] = json_value(element);
  return object;
}

struct JsonFields {
  nlohmann::json& object;
  template <class T>
  void operator()(const char* name, const T& value) {
    object[name] = json_value(value);
  }
};

}  // namespace detail

/// `message` as a JSON object; strings that are not UTF-8 are cleaned, so that dump() never throws. Any thread.
template <class T>
nlohmann::json to_json(const T& message) {
  nlohmann::json object = nlohmann::json::object();
  detail::JsonFields fields{object};
  T::fields(message, fields);
  return object;
}

/// An event as JSON: its envelope and its fields in one object, as on the wire.
template <class T>
nlohmann::json to_json(const Envelope& envelope, const T& message) {
  nlohmann::json object = to_json(envelope);
  detail::JsonFields fields{object};
  T::fields(message, fields);
  return object;
}

}  // namespace freeride::bus
