// Writing MessagePack: the generic half of the codec. Included only by the codec's own sources.
#pragma once

#include <cstring>
#include <map>
#include <msgpack.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "freeride/bus/utf8.hpp"

namespace freeride::bus::detail {

/// A growing byte buffer that msgpack::packer writes into; kept per thread, so that encoding allocates once: for its
/// result.
class Buffer {
 public:
  void write(const char* bytes, size_t size) {
    if (size > capacity() - used_) grow(size);
    std::memcpy(bytes_.data() + used_, bytes, size);
    used_ += size;
  }
  void clear() {
    used_ = 0;
    if (capacity() > kKeep) bytes_ = std::vector<char>(kStart);  // one huge message must not hold its memory for ever
  }
  std::string str() const { return {bytes_.data(), used_}; }
  size_t size() const { return used_; }

 private:
  static constexpr size_t kStart = 4096, kKeep = 1u << 20;
  size_t capacity() const { return bytes_.size(); }
  void grow(size_t size) { bytes_.resize(std::max(2 * capacity(), used_ + size)); }
  std::vector<char> bytes_ = std::vector<char>(kStart);
  size_t used_ = 0;
};

using Packer = msgpack::packer<Buffer>;

struct FieldCounter {
  uint32_t count = 0;
  template <class T>
  void operator()(const char*, const T&) {
    ++count;
  }
};

template <class T>
uint32_t field_count(const T& value) {
  FieldCounter counter;
  T::fields(value, counter);
  return counter.count;
}

inline void pack_text(Packer& packer, const std::string& text) {
  if (!is_utf8(text)) {
    const std::string clean = clean_utf8(text);
    packer.pack_str(static_cast<uint32_t>(clean.size()))
        .pack_str_body(clean.data(), static_cast<uint32_t>(clean.size()));
    return;
  }
  packer.pack_str(static_cast<uint32_t>(text.size())).pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsMap : std::false_type {};
template <class T>
struct IsMap<std::map<std::string, T>> : std::true_type {};

template <class T>
void pack_value(Packer& packer, const T& value);

struct FieldPacker {
  Packer& packer;
  template <class T>
  void operator()(const char* name, const T& value) {
    const auto length = static_cast<uint32_t>(std::strlen(name));
    packer.pack_str(length).pack_str_body(name, length);
    pack_value(packer, value);
  }
};

template <class T>
void pack_value(Packer& packer, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    pack_text(packer, value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    packer.pack(value);
  } else if constexpr (IsVector<T>::value) {
    packer.pack_array(static_cast<uint32_t>(value.size()));
    for (const auto& element : value) pack_value(packer, element);
  } else if constexpr (IsMap<T>::value) {
    packer.pack_map(static_cast<uint32_t>(value.size()));
    for (const auto& [key, element] : value) {
      pack_text(packer, key);
      pack_value(packer, element);
    }
  } else {
    packer.pack_map(field_count(value));
    FieldPacker fields{packer};
    T::fields(value, fields);
  }
}

}  // namespace freeride::bus::detail
