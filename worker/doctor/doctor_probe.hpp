// Small tools of the doctor: trying something in a process of its own, reading a setting.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>

namespace freeride::worker {

/// Runs `attempt` in a child, so that nothing of it stays, and returns what it returned: 0, or an errno up to 254. 255:
/// it could not be run.
template <class Attempt>
int try_in_child(Attempt attempt) {
  const pid_t pid = fork();
  if (pid < 0) return 255;
  if (pid == 0) {
    const int error = attempt();
    _exit(error < 0 || error > 254 ? 254 : error);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return 255;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/// The first line of a file; empty: there is none.
inline std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// A number in a file; `otherwise` where there is none.
inline long long number_in(const std::string& path, long long otherwise) {
  std::ifstream file(path);
  long long value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace freeride::worker
