// Whether a message of LibTorch's says that memory ran out.
#pragma once

#include <string>

namespace training {

/// What to tell the user where `line`, the first of a message of LibTorch's, says so; "" where it is about something
/// else. It says so in many words: of the GPU's allocator, which go on about its settings, of the host's, and of the
/// libraries that take memory of their own.
inline std::string memory_problem(const std::string& line) {
  for (const char* words :
       {"out of memory", "allocate memory", "not enough memory", "ALLOC_FAILED", "ALLOCATION_FAILED"}) {
    if (line.find(words) == std::string::npos) continue;
    return line.substr(0, line.find(". GPU ")) + "; raise the task's memory limit, or lower batch or image";
  }
  return "";
}

}  // namespace training
