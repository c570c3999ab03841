// SIGINT and SIGTERM as a flag, for the verbs that run until the user has seen enough.
#pragma once

#include <chrono>

namespace freeride::ctl {

/// From now on the two signals only set the flag. Call once, from the main thread.
void catch_interrupts();
bool interrupted();
/// Sleeps that long, or until one of the two signals comes. Returns whether to go on: false once one has come.
bool pause_for(std::chrono::milliseconds time);

}  // namespace freeride::ctl
