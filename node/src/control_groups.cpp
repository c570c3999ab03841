#include "control_groups.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <vector>

#include "freeride/base/log.hpp"

namespace freeride::node {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> words_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istream_iterator<std::string>(in), {}};
}

bool write_word(const fs::path& file, const std::string& word) {
  const Fd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
  return fd.valid() && ::write(fd.get(), word.data(), word.size()) == static_cast<ssize_t>(word.size());
}

// Of version 2 the line is "0::/path"; where there is another, version 1 has the controllers.
std::string own_path(const fs::path& self) {
  std::ifstream in(self);
  std::string line, path;
  for (int lines = 0; std::getline(in, line); ++lines) {
    if (lines > 0 || line.rfind("0::/", 0) != 0) return "";
    path = line.substr(3);
  }
  return path;
}

}  // namespace

ControlGroups ControlGroups::prepare(const fs::path& self, const fs::path& mount) {
  ControlGroups groups;
  const std::string path = own_path(self);
  if (path.empty()) return groups;
  const fs::path folder = mount.string() + path;
  if (words_of(folder / "cgroup.procs") != std::vector<std::string>{std::to_string(::getpid())}) return groups;
  const fs::path own = folder / "freeride-node";
  ::mkdir(own.c_str(), 0755);
  if (!write_word(own / "cgroup.procs", "0")) return groups;
  for (const std::string& controller : words_of(folder / "cgroup.controllers")) {
    if (!write_word(folder / "cgroup.subtree_control", "+" + controller))
      spdlog::warn("the controller {} is not to be had below {}", controller, folder.string());
  }
  groups.folder_ = folder;
  return groups;
}

Fd ControlGroups::join(const std::string& device) const {
  if (folder_.empty()) return {};
  const fs::path own = folder_ / ("worker-" + device);
  ::mkdir(own.c_str(), 0755);
  return Fd(::open((own / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
}

}  // namespace freeride::node
