// Hint: one datagram by which a rank says that its stream has come to a message for a rank on another host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace freeride::hooks {

/// What a hint says. Its only use is to end a hold sooner, so one that is lost, late, doubled or replayed costs a hold
/// at most.
struct Hint {
  static constexpr size_t kBytes = 64;
  using Key = std::array<uint8_t, 16>;  ///< of the job, from training's own store

  uint64_t epoch = 0;     ///< of the job, as the key
  uint32_t sender = 0;    ///< rank in the world
  uint32_t receiver = 0;  ///< rank in the world
  uint64_t count = 0;     ///< messages from the one to the other that exist, this one included
  uint64_t receives =
      0;  ///< the same batch receives up to this message from the receiver; 0: it receives nothing of it
  uint64_t iteration = 0;    ///< of the sender
  uint64_t plain_until = 0;  ///< the sender holds nothing before this iteration
  bool plain = false;        ///< the sender holds nothing in this one
  bool off = false;          ///< the sender has found that holds cost too much: nobody of the job is to hold any more

  friend bool operator==(const Hint&, const Hint&) = default;
};

/// "FRHN", version 1 (u16), flags (u16: 1 plain, 2 off), then the fields in order, little-endian, and SipHash-2-4 of
/// all before it under the job's key. Pure; any thread.
std::array<uint8_t, Hint::kBytes> encode(const Hint& hint, const Hint::Key& key);
/// Nothing unless the datagram is whole, of this version, and made with this key. Reads any bytes. Pure; any thread.
std::optional<Hint> decode_hint(std::span<const uint8_t> datagram, const Hint::Key& key);

/// SipHash-2-4 (Aumasson and Bernstein, 2012).
uint64_t sip_hash(std::span<const uint8_t> bytes, const Hint::Key& key);

}  // namespace freeride::hooks
