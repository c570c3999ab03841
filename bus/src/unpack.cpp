#include "unpack.hpp"

#include "freeride/bus/events.hpp"

namespace freeride::bus::detail {
namespace {
Error malformed(const std::string& why) {
  return {Code::kInvalidArgument, "malformed message: " + why, "see bus/WIRE.md"};
}
}  // namespace

Status Tree::parse(std::string_view bytes) {
  zone_.clear();
  root_ = msgpack::object();
  if (bytes.size() > kMaxMessageBytes) {
    return malformed(std::to_string(bytes.size()) + " bytes, more than " + std::to_string(kMaxMessageBytes));
  }
  try {
    size_t offset = 0;
    bool referenced = false;
    const msgpack::unpack_limit limit(kMaxEntries, kMaxEntries, kMaxMessageBytes, kMaxMessageBytes, kMaxMessageBytes,
                                      kMaxDepth);
    const auto point_into_input = [](msgpack::type::object_type, size_t, void*) { return true; };
    root_ = msgpack::unpack(zone_, bytes.data(), bytes.size(), offset, referenced, point_into_input, nullptr, limit);
    if (offset != bytes.size()) return malformed(std::to_string(bytes.size() - offset) + " bytes after its end");
  } catch (const msgpack::insufficient_bytes&) {
    return malformed("truncated");
  } catch (const std::exception& error) {
    return malformed(error.what());
  }
  if (root_.type != msgpack::type::MAP) return malformed("not a map");
  return {};
}

const msgpack::object* Tree::find(std::string_view key) const {
  const auto& map = root_.via.map;
  for (uint32_t i = 0; i < map.size; ++i) {
    const auto& name = map.ptr[i].key;
    if (name.type == msgpack::type::STR && std::string_view(name.via.str.ptr, name.via.str.size) == key)
      return &map.ptr[i].val;
  }
  return nullptr;
}

Status check_version(const Tree& tree) {
  const msgpack::object* version = tree.find("v");
  if (version == nullptr) return {};
  if (version->type != msgpack::type::POSITIVE_INTEGER) return malformed("'v' is not a number");
  if (version->via.u64 != kWireVersion) {
    return Error{Code::kVersion,
                 "message of wire version " + std::to_string(version->via.u64) + ", this program speaks version " +
                     std::to_string(kWireVersion),
                 "install the same release of FreeRide on both sides"};
  }
  return {};
}

}  // namespace freeride::bus::detail
