// encode() and decode(); each source that includes this instantiates a share of the types, so that they compile side by
// side.
#pragma once

#include "freeride/bus/codec.hpp"
#include "freeride/bus/types.hpp"
#include "pack.hpp"
#include "unpack.hpp"

namespace freeride::bus {
namespace detail {
inline Buffer& scratch() {
  thread_local Buffer buffer;
  buffer.clear();
  return buffer;
}
inline Tree& scratch_tree() {
  thread_local Tree tree;
  return tree;
}
}  // namespace detail

template <class T>
std::string encode(const T& message) {
  detail::Buffer& buffer = detail::scratch();
  detail::Packer packer(buffer);
  detail::pack_value(packer, buffer, message);
  return buffer.str();
}

template <class T>
std::string encode(const Envelope& envelope, const T& message) {
  detail::Buffer& buffer = detail::scratch();
  detail::Packer packer(buffer);
  packer.pack_map(detail::field_count(envelope) + detail::field_count(message));
  detail::FieldPacker fields{packer, buffer};
  Envelope::fields(envelope, fields);
  T::fields(message, fields);
  return buffer.str();
}

template <class T>
Result<T> decode(std::string_view bytes) {
  detail::Tree& tree = detail::scratch_tree();
  if (Status parsed = tree.parse(bytes); !parsed) return parsed.error();
  if (Status version = detail::check_version(tree); !version) return version.error();
  T message;
  detail::ReadState state;
  detail::read_value(tree.root(), message, "message", state);
  if (state.failed) return state.error;
  return message;
}

#define FREERIDE_INSTANTIATE_CODEC(T)                        \
  template std::string encode<T>(const T&);                  \
  template std::string encode<T>(const Envelope&, const T&); \
  template Result<T> decode<T>(std::string_view);

}  // namespace freeride::bus
