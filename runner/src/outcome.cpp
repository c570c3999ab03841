#include "outcome.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>

#include "freeride/pages/names.hpp"

namespace freeride::runner {
namespace {

template <size_t N>
std::optional<std::string> text_of(const std::array<char, N>& field) {
  const size_t length = strnlen(field.data(), N);
  if (length == N) return std::nullopt;
  return std::string(field.data(), length);
}

std::string in(const char* transition) {
  return *transition == '\0' ? "" : std::string(" in ") + transition;
}

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  std::string text = "signal " + std::to_string(signal);
  if (name != nullptr) text += std::string(" (SIG") + name + ")";
  return text;
}

}  // namespace

std::optional<Outcome> decode(const LastWords& words) {
  static constexpr const char* kKinds[] = {"finished", "stopped", "failed", "rejected", "out_of_memory"};
  auto kind = text_of(words.kind);
  auto transition = text_of(words.transition);
  auto reason = text_of(words.reason);
  if (words.magic != LastWords::kMagic || !kind || !transition || !reason) return std::nullopt;
  if (std::none_of(std::begin(kKinds), std::end(kKinds), [&](const char* known) { return *kind == known; })) {
    return std::nullopt;
  }
  Outcome outcome;
  outcome.kind = std::move(*kind);
  outcome.transition = std::move(*transition);
  outcome.reason = std::move(*reason);
  outcome.threads_left = words.threads_left;
  outcome.threads_awake = words.threads_awake;
  outcome.step_p50_ns = words.step_p50_ns;
  outcome.step_p90_ns = words.step_p90_ns;
  outcome.step_max_ns = words.step_max_ns;
  return outcome;
}

Outcome judge_exit(int status, uint32_t transition, const std::optional<LastWords>& words) {
  if (words) {
    // Last words count even if the process then died while it was taken down: what happened first is the verdict.
    if (auto outcome = decode(*words)) return *outcome;
  }
  Outcome outcome;
  outcome.transition = pages::transition_name(transition);
  if (WIFSIGNALED(status)) {
    outcome.kind = "crashed";
    outcome.signal = WTERMSIG(status);
    outcome.reason = "killed by " + signal_text(outcome.signal) + in(outcome.transition.c_str());
    if (outcome.signal == SIGKILL) {
      outcome.reason += ", not by its supervisor: by its worker, by the system for want of memory, or by hand";
    }
    return outcome;
  }
  outcome.kind = "failed";
  outcome.reason = "exited with code " + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1) +
                   (*outcome.transition.c_str() == '\0' ? " between transitions" : in(outcome.transition.c_str())) +
                   "; a side task must not end its process";
  return outcome;
}

}  // namespace freeride::runner
