// Running another program to its end.
#pragma once

#include <string>
#include <vector>

#include "freeride/base/result.hpp"

namespace freeride::ctl {

struct Ran {
  int code = -1;    ///< -1: it was killed
  std::string out;  ///< what it has printed, errors too; the beginning of it, where that is much
};

/// Runs `words`, the first looked up on the PATH, without a shell and with an empty input, and waits for its end.
/// Errors: kNotFound, kPermission and others of the start.
Result<Ran> run_program(const std::vector<std::string>& words);

/// The first line of `text` that says something, for a message.
std::string first_line(const std::string& text);

}  // namespace freeride::ctl
