// The signals that end a daemon in good order, and those that are to end none.
#pragma once

#include <csignal>

namespace freeride {

/// SIGTERM, SIGINT, and SIGHUP: whose terminal is closed is to end as if told to, with its side tasks' progress saved.
/// Not SIGHUP where it is ignored (nohup): who started the program wants it to go on.
sigset_t end_signals();

/// Blocks them, in this thread and those it will make, and returns them; and those of stray_signals(), which nobody
/// takes then. For the beginning of main().
sigset_t block_end_signals();

/// SIGUSR1 and SIGUSR2, which a job's owner has Slurm send to all of its processes, for the training's sake. What is
/// made of this process may take this set as its mask.
sigset_t stray_signals();

}  // namespace freeride
