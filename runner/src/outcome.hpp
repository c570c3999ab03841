// How a side task ended, and how the plugin's process tells its supervisor.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace freeride::runner {

/// The verdict's parts, named as on the bus (bus::Verdict). `kind` is one of finished, stopped, overran, out_of_memory,
/// crashed, failed, rejected, lost.
struct Outcome {
  std::string kind;
  std::string reason;
  std::string transition;
  int32_t signal = 0;
  std::string limit;
  // Measured by the runner itself; for `check` and profiles, 0 where the process did not live to say it.
  uint32_t threads_left = 0;    ///< of the plugin's, after StopSideTask
  uint32_t threads_awake = 0;   ///< of them, that executed then
  uint32_t processes_left = 0;  ///< that the plugin had started, after its own process ended; counted by the supervisor
  int64_t step_p50_ns = 0, step_p90_ns = 0, step_max_ns = 0;
  int64_t peak_resident_bytes = 0;  ///< of the plugin's process, by the kernel
};

/// What the plugin's process writes into its private pipe as its last words: fixed size, below PIPE_BUF so that one
/// write is whole, no allocation (it is also written from a terminate handler). The supervisor trusts none of it: see
/// decode().
struct LastWords {
  static constexpr uint32_t kMagic = 0x46524c57;
  uint32_t magic = kMagic;
  uint32_t threads_left = 0, threads_awake = 0;
  int64_t step_p50_ns = 0, step_p90_ns = 0, step_max_ns = 0;
  std::array<char, 24> kind{};
  std::array<char, 24> transition{};
  std::array<char, 1800> reason{};
};
static_assert(sizeof(LastWords) <= 4096);

/// Copies `text` into `field`, cut to fit and terminated.
template <size_t N>
void put_text(std::array<char, N>& field, const char* text) {
  size_t length = 0;
  for (; length + 1 < N && text[length] != '\0'; ++length) field[length] = text[length];
  field[length] = '\0';
}

/// Reads last words; nothing when they are not well-formed or of a kind that a runner cannot know of itself.
std::optional<Outcome> decode(const LastWords& words);

/// The verdict of a plugin's process that ended by itself: by its last words when it exited in good order, else by wait
/// status
/// (`status` as from waitpid) and the transition it was in.
Outcome judge_exit(int status, uint32_t transition, const std::optional<LastWords>& words);

}  // namespace freeride::runner
