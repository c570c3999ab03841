// submit: an ordinary program as a side task, followed to its end.
#pragma once

#include <string>
#include <vector>

#include "verbs.hpp"

namespace freeride::ctl {

struct SubmitArguments {
  LoadArguments load;                ///< without a plugin
  std::vector<std::string> program;  ///< its name and arguments
  bool no_wait = false;
};

/// Submits the program and prints its log until it has ended. Returns the program's exit code, 128 and the signal that
/// ended it, or 130 where the user interrupts: the task goes on then. With `no_wait` it returns at once. Errors: the
/// manager's own, kVersion (a manager that runs no programs).
Result<int> run_submit(Session& session, const SubmitArguments& arguments);

}  // namespace freeride::ctl
