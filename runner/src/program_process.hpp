// A program's first process, from fork to exec.
#pragma once

#include "job.hpp"

namespace freeride::runner {

/// Child process entry: sets the process up, looks whether there is such a program, says so on `gate_fd`, waits there
/// for one byte, executes `job.program`. Never returns. What goes wrong it says in its last words.
[[noreturn]] void run_program(const Job& job, int last_words_fd, int gate_fd);

/// The file that `name` means, as execvp() finds it: itself where it has a '/', else in the folders of `path`. Empty:
/// there is none that this user may execute. Looks at files.
std::string find_program(const std::string& name, const std::string& path);

}  // namespace freeride::runner
