#include "freeride/base/paths.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <system_error>

namespace freeride {
namespace {
std::filesystem::path env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

constexpr const char* kSystemRunDir = "/run/freeride";
}  // namespace

Paths Paths::defaults() {
  Paths paths;
  const bool root = geteuid() == 0;
  paths.run_dir = env("FREERIDE_RUN_DIR");
  if (paths.run_dir.empty()) {
    auto runtime = env("XDG_RUNTIME_DIR");
    if (root) {
      paths.run_dir = kSystemRunDir;
    } else if (!runtime.empty()) {
      paths.run_dir = runtime / "freeride";
    } else {
      paths.run_dir = "/tmp/freeride-" + std::to_string(geteuid());
    }
  }
  paths.state_dir = env("FREERIDE_STATE_DIR");
  if (paths.state_dir.empty()) {
    paths.state_dir = root ? std::filesystem::path("/var/lib/freeride") : env("HOME") / ".local/state/freeride";
  }
  return paths;
}

std::vector<std::filesystem::path> Paths::run_dirs(const std::filesystem::path& given) {
  if (!given.empty()) return {given};
  const auto own = defaults().run_dir;
  if (!env("FREERIDE_RUN_DIR").empty() || own == kSystemRunDir) return {own};
  return {own, kSystemRunDir};
}

std::filesystem::path Paths::run_dir_with(const std::string& name, const std::filesystem::path& given) {
  const auto folders = run_dirs(given);
  for (const auto& folder : folders) {
    if (access((folder / name).c_str(), F_OK) == 0) return folder;
  }
  return folders.front();
}

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

std::filesystem::path find_beside(const std::string& name) {
  auto file = program_folder() / name;
  return access(file.c_str(), X_OK) == 0 ? file : std::filesystem::path();
}

std::filesystem::path find_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    auto file = std::filesystem::path(folder) / name;
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

}  // namespace freeride
