// Decoding must survive anything. Every type's sample is mutated a fixed number of times from fixed seeds: no luck, and
// the same bytes under the sanitizers, which are what makes this worth something.
#include <catch2/catch.hpp>
#include <random>

#include "freeride/bus/json.hpp"
#include "message.hpp"
#include "samples.hpp"

namespace freeride::bus {
namespace {

// Bytes that mean something in MessagePack: containers and strings of every width, nil, numbers' limits.
constexpr unsigned char kTelling[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2,
                                      0xc4, 0xc6, 0xc7, 0xc9, 0xca, 0xcb, 0xcc, 0xcf, 0xd0, 0xd3, 0xd4,
                                      0xd8, 0xd9, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff};

std::string mutate(std::string bytes, std::mt19937& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  const auto changes = 1 + below(4);
  for (size_t i = 0; i < changes; ++i) {
    const size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(kTelling[below(std::size(kTelling))]);
        break;
      case 2:
        bytes.resize(at + 1);
        break;
      case 3:
        bytes.erase(at, 1 + below(8));
        break;
      case 4:
        bytes.insert(at, 1 + below(8), static_cast<char>(kTelling[below(std::size(kTelling))]));
        break;
      default:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(64)));
        break;
    }
    if (bytes.empty()) bytes = "\x80";
  }
  return bytes;
}

template <class T>
void fuzz(const char* name, const std::string& seed_bytes) {
  INFO(name);
  std::mt19937 random(static_cast<uint32_t>(seed_bytes.size()));
  int accepted = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string bytes = mutate(seed_bytes, random);
    auto decoded = decode<T>(bytes);
    if (!decoded) {
      CHECK_FALSE(decoded.error().message.empty());
      continue;
    }
    ++accepted;
    // What was accepted must be a value like any other: it can be shown, sent and read again.
    const std::string again = encode(*decoded);
    auto second = decode<T>(again);
    REQUIRE(second.ok());
    CHECK(encode(*second) == again);
    CHECK_FALSE(to_json(*decoded).dump().empty());
  }
  CHECK(accepted < 1000);
}

TEST_CASE("mutated messages of every type are refused or make sense") {
  const Envelope envelope = test::sample<Envelope>();
#define FUZZ_EVENT(T) fuzz<T>(#T, encode(envelope, test::sample<T>()));
#define FUZZ_PLAIN(T) fuzz<T>(#T, encode(test::sample<T>()));
  FREERIDE_BUS_EVENTS(FUZZ_EVENT)
  FREERIDE_BUS_COMMANDS(FUZZ_PLAIN)
  FREERIDE_BUS_PARTS(FUZZ_PLAIN)
}

TEST_CASE("mutated commands are refused or make sense") {
  Message message;
  message.id = "0123456789abcdef-1";
  message.command = Load::kCommand;
  message.body = encode(test::sample<Load>());
  Message reply = message;
  reply.is_reply = true;
  reply.error = Error{Code::kRejected, "too large", "ask for less"};
  std::mt19937 random(4711);
  for (const Message& each : {message, reply}) {
    const std::string whole = detail::pack_message(each);
    int accepted = 0;
    for (int i = 0; i < 5000; ++i) {
      const std::string bytes = mutate(whole, random);
      const auto salvaged = detail::salvage(bytes);
      CHECK(salvaged.id.size() <= 128);
      auto unpacked = detail::unpack_message(bytes, {});
      if (!unpacked) continue;
      ++accepted;
      CHECK_FALSE(unpacked->id.empty());
      (void)unpacked->as<Load>();
      CHECK(detail::unpack_message(detail::pack_message(*unpacked), {}).ok());
    }
    CHECK(accepted > 0);
    CHECK(accepted < 5000);
  }
}

}  // namespace
}  // namespace freeride::bus
