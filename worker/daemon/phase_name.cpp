#include "daemon/phase_name.hpp"

#include <algorithm>
#include <cstring>

#include "freeride/base/utf8.hpp"
#include "freeride/pages/mapping.hpp"

namespace freeride::worker {
namespace {

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

}  // namespace

std::string phase_name(const freeride_bubble_page& page, uint32_t wait) {
  constexpr uint32_t kFirst = FREERIDE_PHASE_WAIT(0), kEnd = FREERIDE_PHASE_WAIT(FREERIDE_MAX_PHASES);
  if (wait < kFirst || wait >= kEnd) return {};
  char copy[sizeof(freeride_phase::name)];
  std::memcpy(copy, page.phases[wait - kFirst].name, sizeof(copy));
  const size_t length = strnlen(copy, sizeof(copy));
  if (length == sizeof(copy) || std::any_of(copy, copy + length, is_control)) return {};
  std::string name(copy, length);
  return is_utf8(name) ? name : std::string();
}

std::optional<PresentPhase> present_phase(const freeride_bubble_page& page, int64_t now_ns) {
  const uint64_t begun = pages::load_acquire(page.idle_begun);
  if (FREERIDE_PHASE_NUMBER(begun) <= pages::load_acquire(page.idle_ended)) return std::nullopt;
  const uint64_t begin_ns = pages::load_relaxed(page.idle_begin_ns);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);  // after the reading
  if (pages::load_relaxed(page.idle_begun) != begun)
    return std::nullopt;  // the next one has begun: a later look has it
  const auto now = static_cast<uint64_t>(now_ns);
  if (begin_ns == 0 || begin_ns > now || now - begin_ns < uint64_t{PresentPhase::kLeastNs}) return std::nullopt;
  PresentPhase phase;
  phase.number = FREERIDE_PHASE_NUMBER(begun);
  phase.name = phase_name(page, FREERIDE_PHASE_WAIT(FREERIDE_PHASE_NAME(begun)));
  phase.length_ns = static_cast<int64_t>(now - begin_ns);
  return phase.name.empty() ? std::nullopt : std::optional(phase);
}

}  // namespace freeride::worker
