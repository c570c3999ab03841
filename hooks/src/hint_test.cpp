#include "hint.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

using namespace freeride::hooks;

namespace {

Hint::Key key() {
  Hint::Key key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(i);
  return key;
}

Hint sample() {
  Hint hint;
  hint.epoch = 0x1122334455667788u;
  hint.sender = 3;
  hint.receiver = 2;
  hint.count = uint64_t{1} << 40;
  hint.receives = 17;
  hint.iteration = 99;
  hint.plain_until = 123;
  hint.plain = true;
  return hint;
}

}  // namespace

TEST_CASE("hint: SipHash-2-4 is the one of its authors", "[hint]") {
  std::vector<uint8_t> bytes;
  CHECK(sip_hash(bytes, key()) == 0x726fdb47dd0e0e31u);
  for (uint8_t i = 0; i < 15; ++i) bytes.push_back(i);
  CHECK(sip_hash(bytes, key()) == 0xa129ca6149be45e5u);  // of the paper's appendix
}

TEST_CASE("hint: what is told is understood, under the job's key only", "[hint]") {
  for (const bool off : {false, true}) {
    Hint hint = sample();
    hint.off = off;
    const auto bytes = encode(hint, key());
    const auto read = decode_hint(bytes, key());
    REQUIRE(read.has_value());
    CHECK(*read == hint);
    auto other = key();
    other[5] ^= 1;
    CHECK_FALSE(decode_hint(bytes, other).has_value());
  }
}

TEST_CASE("hint: a changed bit, a missing byte or one more is no hint", "[hint]") {
  const auto bytes = encode(sample(), key());
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto changed = bytes;
    changed[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    CHECK_FALSE(decode_hint(changed, key()).has_value());
  }
  std::vector<uint8_t> longer(bytes.begin(), bytes.end());
  longer.push_back(0);
  CHECK_FALSE(decode_hint(longer, key()).has_value());
  for (size_t size = 0; size < bytes.size(); ++size) {
    CHECK_FALSE(decode_hint(std::span(bytes).first(size), key()).has_value());
  }
}

TEST_CASE("hint: any bytes are read, and none of chance is one", "[hint]") {
  std::mt19937_64 chance(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes(i % 3 == 0 ? chance() % 200 : Hint::kBytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(chance());
    CHECK_FALSE(decode_hint(bytes, key()).has_value());
  }
}
