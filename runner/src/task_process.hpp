// What every side task's process does between its fork and what it is for.
#pragma once

#include "job.hpp"

namespace freeride::runner {

/// Where the process has the pipe of its last words.
constexpr int kLastWordsFd = 3;

/// Session or group, name, no core dumps, default signals, no input. Outside of a sandbox also the last place among
/// sessions, and the first when memory runs out. Child process.
void set_up_process(const Job& job);

/// In a sandbox: gives up what a side task must not have. Where that is not possible, says so in its last words and
/// ends the process. Child process.
void confine_process(const Job& job, int last_words_fd);

/// Into the folder that was asked for. After all descriptors of whoever has set the sandbox up are closed: /proc would
/// name them. Where it is not there, says so in its last words and ends the process. Child process.
void enter_working_dir(const Job& job, int last_words_fd);

}  // namespace freeride::runner
