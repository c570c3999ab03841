#include "last_words.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "freeride/pages.h"
#include "freeride/pages/names.hpp"

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::VerdictKind;

// What a plugin's process may say of itself. A kill is not among it, nor what only the supervisor or the worker sees.
constexpr std::pair<VerdictKind, Cause> kMaySay[] = {
    {VerdictKind::kFinished, Cause::kDone},      {VerdictKind::kFinished, Cause::kSteps},
    {VerdictKind::kStopped, Cause::kOrder},      {VerdictKind::kFailed, Cause::kTransition},
    {VerdictKind::kFailed, Cause::kSandbox},     {VerdictKind::kOutOfMemory, Cause::kNoMemory},
    {VerdictKind::kRejected, Cause::kPlugin},    {VerdictKind::kRejected, Cause::kProgram},
    {VerdictKind::kRejected, Cause::kParameter},
};

}  // namespace

LastWords last_words(VerdictKind kind, Cause cause, uint32_t transition, const char* message) {
  LastWords words;
  words.kind = static_cast<uint32_t>(kind);
  words.cause = static_cast<uint32_t>(cause);
  words.transition = transition;
  std::memcpy(words.message.data(), message, strnlen(message, words.message.size() - 1));
  return words;
}

void write_last_words(int fd, const LastWords& words) {
  [[maybe_unused]] const ssize_t written = write(fd, &words, sizeof(words));
}

std::optional<Outcome> read_last_words(int fd) {
  LastWords words;
  const ssize_t length = read(fd, &words, sizeof(words));
  return length == static_cast<ssize_t>(sizeof(words)) ? decode(words) : std::nullopt;
}

std::optional<Outcome> decode(const LastWords& words) {
  const size_t length = strnlen(words.message.data(), words.message.size());
  const auto* said = std::find_if(std::begin(kMaySay), std::end(kMaySay), [&](const auto& may) {
    return words.kind == static_cast<uint32_t>(may.first) && words.cause == static_cast<uint32_t>(may.second);
  });
  if (words.magic != LastWords::kMagic || length == words.message.size() || said == std::end(kMaySay)) {
    return std::nullopt;
  }
  Outcome outcome;
  outcome.verdict.kind = said->first;
  outcome.verdict.cause = said->second;
  outcome.verdict.transition = pages::transition_name(words.transition);
  outcome.verdict.message.assign(words.message.data(), length);
  outcome.threads_left = words.threads_left;
  outcome.threads_awake = words.threads_awake;
  outcome.step_p50_ns = words.step_p50_ns;
  outcome.step_p90_ns = words.step_p90_ns;
  outcome.step_max_ns = words.step_max_ns;
  return outcome;
}

}  // namespace freeride::runner
