// Datagrams that come at a rank's socket for hints: as they are, and as one that knows the job's key would send them.
#include <algorithm>
#include <array>
#include <vector>

#include "fuzz.hpp"
#include "hint.hpp"

using namespace freeride;
using hooks::decode_hint;
using hooks::Hint;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Hint::Key key{};
  const size_t of_key = std::min(size, key.size());
  std::copy_n(data, of_key, key.begin());
  std::vector<uint8_t> datagram(data + of_key, data + size);
  if (const auto guessed = decode_hint(datagram, key)) fuzz::must(hooks::encode(*guessed, key).size() == Hint::kBytes);

  constexpr size_t kMacBytes = sizeof(uint64_t);
  datagram.resize(Hint::kBytes);
  const uint64_t mac = hooks::sip_hash({datagram.data(), Hint::kBytes - kMacBytes}, key);
  for (size_t i = 0; i < kMacBytes; ++i) datagram[Hint::kBytes - kMacBytes + i] = static_cast<uint8_t>(mac >> (8 * i));
  const auto hint = decode_hint(datagram, key);
  if (!hint) return 0;  // of another version
  auto again = hooks::encode(*hint, key);
  const auto same = decode_hint(again, key);
  fuzz::must(same && *same == *hint);
  const size_t bit = size % (8 * Hint::kBytes);
  again[bit / 8] = static_cast<uint8_t>(again[bit / 8] ^ (1u << (bit % 8)));
  fuzz::must(!decode_hint(again, key));
  fuzz::must(!decode_hint({again.data(), Hint::kBytes - 1}, key));
  return 0;
}
