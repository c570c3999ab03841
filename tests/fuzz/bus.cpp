// Messages: events and commands of every type. The first byte says which; what is accepted is a value like any other.
#include <string>
#include <string_view>

#include "freeride/bus/codec.hpp"
#include "freeride/bus/json.hpp"
#include "freeride/bus/types.hpp"
#include "fuzz.hpp"
#include "message.hpp"

using namespace freeride;

namespace {

template <class T>
void decode_and_again(std::string_view bytes) {
  const auto decoded = bus::decode<T>(bytes);
  if (!decoded) return fuzz::must(!decoded.error().message.empty());
  const std::string again = bus::encode(*decoded);
  const auto second = bus::decode<T>(again);
  fuzz::must(second.ok() && bus::encode(*second) == again);
  fuzz::must(!bus::to_json(*decoded).dump().empty());
}

void unpack(std::string_view frame) {
  fuzz::must(bus::detail::salvage(frame).id.size() <= 128);
  const auto message = bus::detail::unpack_message(frame, {});
  if (!message) return;
  fuzz::must(!message->id.empty());
  (void)message->as<bus::Load>();
  fuzz::must(bus::detail::unpack_message(bus::detail::pack_message(*message), {}).ok());
}

using Decode = void (*)(std::string_view);
constexpr Decode kDecoders[] = {unpack,
#define FREERIDE_FUZZ_TYPE(T) decode_and_again<bus::T>,
                                FREERIDE_BUS_EVENTS(FREERIDE_FUZZ_TYPE) FREERIDE_BUS_COMMANDS(FREERIDE_FUZZ_TYPE)
                                    FREERIDE_BUS_PARTS(FREERIDE_FUZZ_TYPE)
#undef FREERIDE_FUZZ_TYPE
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  kDecoders[*data % std::size(kDecoders)](bytes);
  return 0;
}
