// freeride::Idle: an idle phase of a training in C++, as long as the object lives. Header only, over freeride/hook.h.
#pragma once

#include <chrono>
#include <cstdint>

#include "freeride/hook.h"

namespace freeride {

/// Training leaves its device alone from here to the end of the block:
///
///     {
///       freeride::Idle idle(hook, "rollout", std::chrono::seconds(5));
///       wait_for_rollouts();
///     }
///
/// Any thread. Never throws or blocks. `hook` may be null, and must otherwise come from freeride_hook_attach(). What
/// freeride_hook_idle_begin() says of its arguments holds here, too.
class Idle {
 public:
  /// `expected` 0: the length is learned, by name.
  Idle(freeride_hook* hook, const char* name, std::chrono::nanoseconds expected = {}, void* stream = nullptr) noexcept
      : hook_(hook), phase_(freeride_hook_idle_begin(hook, name, expected.count(), 0, stream)) {}
  /// Nobody knows how long it lasts.
  static Idle open(freeride_hook* hook, const char* name, void* stream = nullptr) noexcept {
    return Idle(hook, freeride_hook_idle_begin(hook, name, 0, FREERIDE_IDLE_OPEN, stream));
  }
  ~Idle() { end(); }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  /// Ends it now. A second time nothing happens.
  void end() noexcept {
    freeride_hook_idle_end(hook_, phase_);
    phase_ = 0;
  }
  /// Whether a phase was begun.
  explicit operator bool() const noexcept { return phase_ != 0; }

 private:
  Idle(freeride_hook* hook, uint64_t phase) noexcept : hook_(hook), phase_(phase) {}

  freeride_hook* hook_;
  uint64_t phase_;
};

}  // namespace freeride
