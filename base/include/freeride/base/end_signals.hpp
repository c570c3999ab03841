// The signals that end a daemon in good order.
#pragma once

#include <csignal>

namespace freeride {

/// SIGTERM, SIGINT, and SIGHUP: whose terminal is closed is to end as if told to, with its side tasks' progress saved.
/// Not SIGHUP where it is ignored (nohup): who started the program wants it to go on.
sigset_t end_signals();

/// Blocks them, in this thread and those it will make, and returns them. For the beginning of main().
sigset_t block_end_signals();

}  // namespace freeride
