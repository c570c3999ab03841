// SIGINT and SIGTERM as a flag, for the verbs that run until the user has seen enough.
#pragma once

namespace freeride::ctl {

/// From now on the two signals only set the flag. Call once, from the main thread.
void catch_interrupts();
bool interrupted();

}  // namespace freeride::ctl
