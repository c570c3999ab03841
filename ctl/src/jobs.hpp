// Jobs as people call them: the bus says "UID/NAME" of another user's than the worker's own, people say "USER/NAME".
#pragma once

#include <string>

namespace freeride::ctl {

/// What a job is shown as: "alice/gpt" for "1000/gpt"; as it is where that number has no name, or there is none. May
/// ask the host's user database, which may block.
std::string shown_job(const std::string& job);

/// The job that is meant by what was shown, or typed: the other way round. A user whom the host does not know is taken
/// for a part of the name.
std::string job_argument(const std::string& text);

}  // namespace freeride::ctl
