#include "hint.hpp"

#include <algorithm>
#include <bit>

namespace freeride::hooks {
namespace {

constexpr uint32_t kMagic = 0x4e485246u;  // "FRHN"
constexpr uint16_t kVersion = 1, kPlain = 1, kOff = 2;
constexpr size_t kMac = Hint::kBytes - sizeof(uint64_t);

template <class Number>
void put(uint8_t*& at, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i) *at++ = static_cast<uint8_t>(uint64_t{value} >> (8 * i));
}

template <class Number>
Number get(const uint8_t*& at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) value |= uint64_t{*at++} << (8 * i);
  return static_cast<Number>(value);
}

}  // namespace

uint64_t sip_hash(std::span<const uint8_t> bytes, const Hint::Key& key) {
  const uint8_t* at = key.data();
  const auto k0 = get<uint64_t>(at), k1 = get<uint64_t>(at);
  uint64_t v0 = k0 ^ 0x736f6d6570736575u, v1 = k1 ^ 0x646f72616e646f6du;
  uint64_t v2 = k0 ^ 0x6c7967656e657261u, v3 = k1 ^ 0x7465646279746573u;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
      v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
    }
  };
  const auto take = [&](uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };
  size_t left = bytes.size();
  at = bytes.data();
  for (; left >= 8; left -= 8) take(get<uint64_t>(at));
  uint64_t last = uint64_t{bytes.size()} << 56;
  for (size_t i = 0; i < left; ++i) last |= uint64_t{at[i]} << (8 * i);
  take(last);
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

std::array<uint8_t, Hint::kBytes> encode(const Hint& hint, const Hint::Key& key) {
  std::array<uint8_t, Hint::kBytes> bytes{};
  uint8_t* at = bytes.data();
  put(at, kMagic);
  put(at, kVersion);
  put(at, static_cast<uint16_t>((hint.plain ? kPlain : 0) | (hint.off ? kOff : 0)));
  put(at, hint.epoch);
  put(at, hint.sender);
  put(at, hint.receiver);
  put(at, hint.count);
  put(at, hint.receives);
  put(at, hint.iteration);
  put(at, hint.plain_until);
  put(at, sip_hash({bytes.data(), kMac}, key));
  return bytes;
}

std::optional<Hint> decode_hint(std::span<const uint8_t> datagram, const Hint::Key& key) {
  if (datagram.size() != Hint::kBytes) return std::nullopt;
  const uint8_t* at = datagram.data() + kMac;
  if (get<uint64_t>(at) != sip_hash(datagram.first(kMac), key)) return std::nullopt;
  at = datagram.data();
  if (get<uint32_t>(at) != kMagic || get<uint16_t>(at) != kVersion) return std::nullopt;
  Hint hint;
  const auto flags = get<uint16_t>(at);
  hint.plain = (flags & kPlain) != 0;
  hint.off = (flags & kOff) != 0;
  hint.epoch = get<uint64_t>(at);
  hint.sender = get<uint32_t>(at);
  hint.receiver = get<uint32_t>(at);
  hint.count = get<uint64_t>(at);
  hint.receives = get<uint64_t>(at);
  hint.iteration = get<uint64_t>(at);
  hint.plain_until = get<uint64_t>(at);
  return hint;
}

}  // namespace freeride::hooks
