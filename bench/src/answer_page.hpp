// AnswerPage: what a side task's runner says of itself, for benchmarks that look at it from outside.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "freeride/pages.h"

namespace freeride::bench {

// Processes whose command line holds all of `words`.
inline std::vector<pid_t> find_processes(const std::vector<std::string>& words) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "cmdline");
    std::ostringstream text;
    text << file.rdbuf();  // an iterator over the buffer throws where the process ends meanwhile
    std::string line = text.str();
    std::replace(line.begin(), line.end(), '\0', ' ');
    if (std::all_of(words.begin(), words.end(),
                    [&](const std::string& word) { return line.find(word) != std::string::npos; })) {
      found.push_back(pid);
    }
  }
  return found;
}

/// The answer page of a running side task, mapped through its supervisor's descriptor. Needs to be root, or the
/// supervisor's user.
class AnswerPage {
 public:
  static std::optional<AnswerPage> find(const std::string& task) {
    for (const pid_t pid : find_processes({"freeride-runner supervise", "--name=" + task + " "})) {
      std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
      const std::string option = "--answer-fd=";
      for (std::string word; std::getline(file, word, '\0');) {
        if (word.rfind(option, 0) != 0) continue;
        const std::string link = "/proc/" + std::to_string(pid) + "/fd/" + word.substr(option.size());
        const int fd = ::open(link.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) break;
        void* map = ::mmap(nullptr, sizeof(freeride_answer_page), PROT_READ, MAP_SHARED, fd, 0);
        ::close(fd);
        if (map != MAP_FAILED) return AnswerPage(static_cast<const freeride_answer_page*>(map));
      }
    }
    return std::nullopt;
  }
  int64_t first_step_ns() const { return read(page_->first_step_ns); }
  int64_t last_paused_ns() const { return read(page_->last_paused_ns); }
  int64_t steps() const { return read(page_->steps); }

 private:
  explicit AnswerPage(const freeride_answer_page* page) : page_(page) {}
  static int64_t read(const uint64_t& field) { return static_cast<int64_t>(__atomic_load_n(&field, __ATOMIC_ACQUIRE)); }
  const freeride_answer_page* page_;
};

}  // namespace freeride::bench
