// The process that probes the GPU: freeride-worker --probe FD.
#pragma once

namespace freeride::worker {

/// Makes a context on the one GPU that it sees and answers questions on the page behind `fd` until its parent is gone.
/// Blocks. Returns the process's exit code; what went wrong is one line on standard error.
int run_probe(int fd);

}  // namespace freeride::worker
