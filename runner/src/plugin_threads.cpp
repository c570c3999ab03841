#include "plugin_threads.hpp"

#include <dirent.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <map>
#include <string>

#include "freeride/base/clock.hpp"
#include "limits.hpp"

namespace freeride::runner {
namespace {

// What the kernel has counted of every thread but this one: time executed and how often.
std::map<std::string, std::string> execution_of_others() {
  std::map<std::string, std::string> all;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return all;
  const std::string self = std::to_string(gettid());
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    const std::string name = entry->d_name;
    if (name[0] == '.' || name == self) continue;
    std::ifstream file("/proc/self/task/" + name + "/schedstat");
    std::getline(file, all[name]);
  }
  closedir(folder);
  return all;
}

}  // namespace

uint32_t count_threads() {
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return 0;
  uint32_t count = 0;
  while (const dirent* entry = readdir(folder)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(folder);
  return count;
}

uint32_t count_awake_threads() {
  const auto before = execution_of_others();
  const timespec watch{0, kThreadWatchMs * kNsPerMs};
  nanosleep(&watch, nullptr);
  uint32_t awake = 0;
  for (const auto& [thread, executed] : execution_of_others()) {
    const auto known = before.find(thread);
    if (known == before.end() || known->second != executed) ++awake;
  }
  return awake;
}

}  // namespace freeride::runner
