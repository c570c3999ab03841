// Writing MessagePack: the generic half of the codec. Included only by the codec's own sources.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <msgpack.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "freeride/base/utf8.hpp"

namespace freeride::bus::detail {

// Inlined into fields(), where names are literals: their length is then known to the compiler, and copying or comparing
// them takes an instruction or two instead of three calls. Half of the codec's time was that.
#define FREERIDE_INLINE __attribute__((always_inline)) inline

/// A growing byte buffer that msgpack::packer writes into; kept per thread, so that encoding allocates once: for its
/// result.
class Buffer {
 public:
  FREERIDE_INLINE void write(const char* bytes, size_t size) {
    if (size > static_cast<size_t>(end_ - at_)) [[unlikely]]
      grow(size);
    std::memcpy(at_, bytes, size);
    at_ += size;
  }
  void clear() {
    if (bytes_.size() > kKeep)
      bytes_ = std::vector<char>(kStart);  // one huge message must not hold its memory for ever
    reset(0);
  }
  std::string str() const { return {bytes_.data(), size()}; }
  size_t size() const { return static_cast<size_t>(at_ - bytes_.data()); }

 private:
  static constexpr size_t kStart = 4096, kKeep = 1u << 20;
  void reset(size_t used) {
    at_ = bytes_.data() + used;
    end_ = bytes_.data() + bytes_.size();
  }
  __attribute__((noinline, cold)) void grow(size_t size) {
    const size_t used = this->size();
    bytes_.resize(std::max(2 * bytes_.size(), used + size));
    reset(used);
  }
  std::vector<char> bytes_ = std::vector<char>(kStart);
  char* at_ = bytes_.data();
  char* end_ = bytes_.data() + kStart;
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
void pack_value(Packer& packer, Buffer& buffer, const T& value);

struct FieldPacker {
  Packer& packer;
  Buffer& buffer;
  template <class T>
  FREERIDE_INLINE void operator()(const char* name, const T& value) {
    char key[32];
    const size_t length = std::strlen(name);
    if (length < sizeof key) {
      key[0] = static_cast<char>(0xa0 | length);  // fixstr
      std::copy_n(name, length, key + 1);
      buffer.write(key, length + 1);
    } else {
      packer.pack_str(static_cast<uint32_t>(length)).pack_str_body(name, static_cast<uint32_t>(length));
    }
    pack_value(packer, buffer, value);
  }
};

template <class T>
void pack_value(Packer& packer, Buffer& buffer, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    pack_text(packer, value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    packer.pack(value);
  } else if constexpr (IsVector<T>::value) {
    packer.pack_array(static_cast<uint32_t>(value.size()));
    for (const auto& element : value) pack_value(packer, buffer, element);
  } else if constexpr (IsMap<T>::value) {
    packer.pack_map(static_cast<uint32_t>(value.size()));
    for (const auto& [key, element] : value) {
      pack_text(packer, key);
      pack_value(packer, buffer, element);
    }
  } else {
    packer.pack_map(field_count(value));
    FieldPacker fields{packer, buffer};
    T::fields(value, fields);
  }
}

}  // namespace freeride::bus::detail
