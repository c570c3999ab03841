// Task work: what a side task is told to do next, as a file in its scratch folder.
#pragma once

#include <string>

#include "freeride/base/result.hpp"

namespace freeride::worker {

/// Puts `text` into the file .freeride-work of the scratch folder, in place of what was there, at once for whoever
/// reads it. The folder is the plugin's to spoil: no link of it is followed, and nothing of it is waited for. Errors:
/// errno's.
Status put_work(int scratch_folder, const std::string& text);

}  // namespace freeride::worker
