#include "process_tree.hpp"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <vector>

#include "freeride/base/clock.hpp"
#include "freeride/base/process_stat.hpp"

namespace freeride::runner {
namespace {

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  DIR* folder = opendir("/proc");
  if (folder == nullptr) return found;
  const pid_t self = getpid();
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    pid_t pid = 0;
    std::from_chars(entry->d_name, entry->d_name + strlen(entry->d_name), pid);
    const auto stat = stat_of(pid);
    if (pid > 1 && stat && stat->parent == self) found.push_back(pid);
  }
  closedir(folder);
  return found;
}

}  // namespace

void adopt_descendants() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int kill_descendants(int64_t most_ms) {
  const int64_t until_ns = SteadyClock::now() + most_ms * kNsPerMs;
  int found = 0;
  // The killed become ours to reap only as their parents die, and a forking one may be quicker than we are: round after
  // round.
  for (;;) {
    pid_t pid = 0;
    int status = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ++found;
    }
    if (pid < 0 && errno == ECHILD) return found;
    if (SteadyClock::now() > until_ns) return -1;
    for (const pid_t child : children()) kill(child, SIGKILL);  // not reaped yet: their numbers are still theirs
    const timespec moment{0, kNsPerMs};
    nanosleep(&moment, nullptr);
  }
}

}  // namespace freeride::runner
