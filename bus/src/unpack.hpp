// Reading MessagePack: the generic half of the decoder. Included only by the bus's own sources.
//
// The bytes are untrusted. msgpack-c builds a tree under limits (depth, entries of a container, size), whose strings
// point into the input; the tree is then read into a struct by the struct's own list of fields.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "freeride/base/result.hpp"
#include "pack.hpp"

namespace freeride::bus::detail {

constexpr size_t kMaxMessageBytes = 16u << 20;
constexpr size_t kMaxEntries = 1u << 16;  ///< of one array or map
constexpr size_t kMaxDepth = 24;          ///< our deepest type has 6
/// Structs inside arrays and maps, over a whole message. One byte of input can become a struct of some hundred bytes;
/// without this, 16 MiB could become gigabytes.
constexpr size_t kMaxStructs = 1u << 16;

/// A parsed message; strings and binaries point into the bytes given to parse(), which must outlive it.
class Tree {
 public:
  /// Errors: kInvalidArgument: too large, truncated, too deep, malformed, trailing bytes, not a map.
  Status parse(std::string_view bytes);
  const msgpack::object& root() const { return root_; }
  /// The value under `key` in the top-level map, or null.
  const msgpack::object* find(std::string_view key) const;

 private:
  msgpack::zone zone_{2048};
  msgpack::object root_;
};

/// Checks "v" of a top-level map. Missing is fine (bodies have none). Errors: kVersion, kInvalidArgument (not a
/// number).
Status check_version(const Tree& tree);

struct ReadState {
  Error error;
  bool failed = false;
  size_t structs = 0;
  void fail(const char* field, const char* what) {
    if (failed) return;
    failed = true;
    error = {Code::kInvalidArgument, std::string("field '") + field + "' " + what, "see bus/WIRE.md for the types"};
  }
};

template <class T>
void read_value(const msgpack::object& object, T& value, const char* name, ReadState& state);

class FieldReader {
 public:
  FieldReader(const msgpack::object_map& map, ReadState& state) : map_(map), state_(state) {}

  template <class T>
  FREERIDE_INLINE void operator()(const char* name, T& value) {
    if (state_.failed) return;
    const size_t length = std::strlen(name);
    const msgpack::object* object = nullptr;
    // Our own encoder writes the fields in the order in which they are read here: the next entry is nearly always it.
    if (next_ < map_.size && matches(map_.ptr[next_].key, name, length)) {
      object = &map_.ptr[next_++].val;
    } else {
      object = find(name, length);
    }
    if (object != nullptr) read_value(*object, value, name, state_);
  }

 private:
  static FREERIDE_INLINE bool matches(const msgpack::object& key, const char* name, size_t length) {
    return key.type == msgpack::type::STR && key.via.str.size == length &&
           std::memcmp(key.via.str.ptr, name, length) == 0;
  }
  __attribute__((noinline)) const msgpack::object* find(const char* name, size_t length) {
    for (uint32_t looked = 0; looked < map_.size; ++looked) {
      if (next_ >= map_.size) next_ = 0;
      const msgpack::object_kv& entry = map_.ptr[next_++];
      if (matches(entry.key, name, length)) return &entry.val;
    }
    return nullptr;
  }
  const msgpack::object_map& map_;
  ReadState& state_;
  uint32_t next_ = 0;
};

template <class T>
void read_integer(const msgpack::object& object, T& value, const char* name, ReadState& state) {
  if (object.type == msgpack::type::POSITIVE_INTEGER) {
    if (object.via.u64 > static_cast<uint64_t>(std::numeric_limits<T>::max())) return state.fail(name, "is too large");
    value = static_cast<T>(object.via.u64);
  } else if (object.type == msgpack::type::NEGATIVE_INTEGER) {
    if constexpr (std::is_unsigned_v<T>) {
      state.fail(name, "must not be negative");
    } else {
      if (object.via.i64 < static_cast<int64_t>(std::numeric_limits<T>::min())) return state.fail(name, "is too small");
      value = static_cast<T>(object.via.i64);
    }
  } else {
    state.fail(name, "must be an integer");
  }
}

inline void read_double(const msgpack::object& object, double& value, const char* name, ReadState& state) {
  switch (object.type) {  // other languages write 0 for 0.0
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      value = object.via.f64;
      break;
    case msgpack::type::POSITIVE_INTEGER:
      value = static_cast<double>(object.via.u64);
      break;
    case msgpack::type::NEGATIVE_INTEGER:
      value = static_cast<double>(object.via.i64);
      break;
    default:
      state.fail(name, "must be a number");
  }
}

template <class T>
constexpr bool kIsStruct =
    std::is_class_v<T> && !std::is_same_v<T, std::string> && !IsVector<T>::value && !IsMap<T>::value;

template <class T>
bool within_budget(size_t more, const char* name, ReadState& state) {
  if constexpr (kIsStruct<T>) {
    state.structs += more;
    if (state.structs > kMaxStructs) {
      state.fail(name, "holds too many elements");
      return false;
    }
  }
  return true;
}

template <class T>
void read_value(const msgpack::object& object, T& value, const char* name, ReadState& state) {
  if (object.type == msgpack::type::NIL) return;  // counts as missing
  if constexpr (std::is_same_v<T, bool>) {
    if (object.type != msgpack::type::BOOLEAN) return state.fail(name, "must be a boolean");
    value = object.via.boolean;
  } else if constexpr (std::is_integral_v<T>) {
    read_integer(object, value, name, state);
  } else if constexpr (std::is_same_v<T, double>) {
    read_double(object, value, name, state);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (object.type != msgpack::type::STR) return state.fail(name, "must be a string");
    value.assign(object.via.str.ptr, object.via.str.size);
  } else if constexpr (IsVector<T>::value) {
    if (object.type != msgpack::type::ARRAY) return state.fail(name, "must be an array");
    const auto& array = object.via.array;
    if (!within_budget<typename T::value_type>(array.size, name, state)) return;
    value.clear();
    value.reserve(array.size);
    for (uint32_t i = 0; i < array.size && !state.failed; ++i)
      read_value(array.ptr[i], value.emplace_back(), name, state);
  } else if constexpr (IsMap<T>::value) {
    if (object.type != msgpack::type::MAP) return state.fail(name, "must be a map");
    const auto& map = object.via.map;
    if (!within_budget<typename T::mapped_type>(map.size, name, state)) return;
    value.clear();
    for (uint32_t i = 0; i < map.size && !state.failed; ++i) {
      const auto& key = map.ptr[i].key;
      if (key.type != msgpack::type::STR) return state.fail(name, "must have strings as keys");
      read_value(map.ptr[i].val, value[std::string(key.via.str.ptr, key.via.str.size)], name, state);
    }
  } else {
    if (object.type != msgpack::type::MAP) return state.fail(name, "must be a map");
    FieldReader fields(object.via.map, state);
    T::fields(value, fields);
  }
}

}  // namespace freeride::bus::detail
