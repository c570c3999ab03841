// MessagePack codec for the types of events.hpp and commands.hpp: flat maps with string keys, so that any language's
// msgpack library gives a readable dictionary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "freeride/base/result.hpp"
#include "freeride/bus/commands.hpp"
#include "freeride/bus/events.hpp"

namespace freeride::bus {

/// What every event carries beside its own fields, in the same map: keys "v", "source", "seq", "t_ns", "kept".
struct Envelope {  // NOLINT(clang-analyzer-optin.performance.Padding): in the order of WIRE.md
  uint32_t v = kWireVersion;
  std::string source;  ///< the publisher, unique per process, e.g. "worker host:cpu-0 #4711"
  uint64_t seq = 0;    ///< counts up by one per source: a gap is a loss
  int64_t t_ns = 0;    ///< CLOCK_MONOTONIC of the publisher's host
  bool kept = false;   ///< a repetition of the last state, for late joiners; not news, and not counted for gaps
  FREERIDE_FIELDS {
    visit("v", self.v), visit("source", self.source), visit("seq", self.seq), visit("t_ns", self.t_ns);
    visit("kept", self.kept);
  }
};

/// Encodes a struct (and, before it, the envelope) as one MessagePack map. Explicitly instantiated for every type of
/// the two headers.
template <class T>
std::string encode(const T& message);
template <class T>
std::string encode(const Envelope& envelope, const T& message);

/// Decodes. Unknown keys are ignored, missing ones keep their default. Depth, string and container sizes are bounded.
/// Errors: kInvalidArgument (not a MessagePack map, truncated, a field of another type, trailing bytes), kVersion ("v"
/// is not ours).
template <class T>
Result<T> decode(std::string_view bytes);

}  // namespace freeride::bus
