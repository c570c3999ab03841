// The plugin's process from fork to exit.
#pragma once

#include "freeride/pages.h"
#include "job.hpp"
#include "thaw.hpp"

namespace freeride::runner {

/// Child process entry: sets up the process (session, signals, descriptors, confinement), runs the job, exits. Never
/// returns.
[[noreturn]] void run_child(Job job, const freeride_lease_page& lease, int answer_fd, int last_words_fd, Thaw* thaw);

}  // namespace freeride::runner
