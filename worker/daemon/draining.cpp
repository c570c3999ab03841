#include "daemon/draining.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace freeride::worker {

bool Draining::work(const Tasks& tasks) {
  if (!on()) {
    there_.clear();
    done_ = 0;
    return false;
  }
  if (done() != 0) return false;
  const bool live = std::any_of(tasks.begin(), tasks.end(),
                                [](const auto& task) { return !task.second->ended() && !task.second->stopping(); });
  if (live && (round_ == nullptr || !round_->busy())) {
    round_ = std::make_unique<Shutdown>(loop_, stop_ns_, host_, replacements_);
    round_->begin(tasks);
  }
  std::string there = look_();
  const bool news = there != there_ || there.empty();
  there_ = std::move(there);
  if (there_.empty()) done_ = number_;
  return news;
}

void Draining::ended(const SideTask& task) {
  if (round_ != nullptr) round_->ended(task);
}

std::string child_processes() {
  std::string found;
  std::error_code error;
  const std::string own = std::to_string(getpid());
  for (auto it = std::filesystem::directory_iterator("/proc", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(it->path() / "stat");
    std::string line;
    std::getline(file, line);
    // "PID (NAME) STATE PPID ...", and the name may hold anything.
    const size_t open = line.find('('), close = line.rfind(')');
    if (open == std::string::npos || close == std::string::npos || close + 4 > line.size()) continue;
    const std::string parent = line.substr(close + 4, line.find(' ', close + 4) - close - 4);
    if (parent == own) found += (found.empty() ? "" : ", ") + line.substr(open + 1, close - open - 1) + " " + name;
  }
  if (error) return "(/proc cannot be read)";
  return found;
}

}  // namespace freeride::worker
