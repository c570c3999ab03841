// A daemon's threads: none ends without a word.
#pragma once

#include <functional>
#include <string>

namespace freeride {

/// Runs `work` on this thread, which is one of a daemon's. If it throws, the process ends with exit code 1, and a line
/// of the log says which thread (`name`, as in "the event broker") has failed, and why. A daemon without one of its
/// threads would look healthy, and nobody would start it again.
void run_or_end(const std::string& name, const std::function<void()>& work) noexcept;

}  // namespace freeride
