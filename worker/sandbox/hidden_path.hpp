// Which path a task could not open because its sandbox does not show it.
#pragma once

#include <string>
#include <vector>

namespace freeride::worker {

/// The first absolute path in `message`, where that says that something cannot be opened or found and none of `visible`
/// (folders and files) holds the path; empty: there is none. The message is the task's own, so this is a hint, no more:
/// nobody looks whether the host has such a file. Pure; any thread.
std::string hidden_path(const std::string& message, const std::vector<std::string>& visible);

}  // namespace freeride::worker
