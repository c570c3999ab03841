// How the supervisor tells the runner to stop in good order: a signal, and a futex wait that cannot miss it.
#pragma once

#include <csignal>
#include <cstdint>

namespace freeride::runner {

/// The signal (a real-time one, so that no plugin's library takes it by habit).
int stop_signal();

/// Installs its handler. Again after user code has run, which may have changed it. Main thread.
void install_stop_signal();

/// Has it come? Any thread.
bool stop_requested();

/// Sleeps while `word == expected` and no stop was requested, until woken with one of `bits`. Wakes may be spurious.
/// Main thread.
void wait_for_change(const uint32_t& word, uint32_t expected, uint32_t bits);

}  // namespace freeride::runner
