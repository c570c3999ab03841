// Last words: how the plugin's process tells its supervisor why it ends.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "outcome.hpp"

namespace freeride::runner {

/// What the plugin's process writes into its private pipe: fixed size, below PIPE_BUF so that one write is whole, no
/// allocation (it is also written from a terminate handler). Supervisor and runner are one program, so the values are
/// those of its enums. The supervisor trusts none of it: see decode().
struct LastWords {
  static constexpr uint32_t kMagic = 0x46524c58;
  uint32_t magic = kMagic;
  uint32_t kind = 0;        ///< policy::VerdictKind
  uint32_t cause = 0;       ///< policy::Cause
  uint32_t transition = 0;  ///< FREERIDE_IN_*
  uint32_t threads_left = 0, threads_awake = 0;
  int64_t step_p50_ns = 0, step_p90_ns = 0, step_max_ns = 0;
  std::array<char, 1800> message{};
};
static_assert(sizeof(LastWords) <= 4096);

/// Last words without figures; `message` is cut to fit. No allocation.
LastWords last_words(policy::VerdictKind kind, policy::Cause cause, uint32_t transition, const char* message);

/// Writes them whole. A pipe that nobody reads any more is nobody to be told. Does not block.
void write_last_words(int fd, const LastWords& words);

/// Reads a pipe of O_NONBLOCK: nothing when no whole record is there yet, or when what is there does not decode().
std::optional<Outcome> read_last_words(int fd);

/// Nothing when they are not well-formed, or of a kind and cause that a runner cannot know of itself.
std::optional<Outcome> decode(const LastWords& words);

}  // namespace freeride::runner
