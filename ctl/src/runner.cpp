#include "runner.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>

namespace freeride::ctl {
namespace {

std::filesystem::path program_folder() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
}

}  // namespace

Result<std::filesystem::path> find_program(const std::string& name) {
  const auto beside = program_folder() / name;
  if (access(beside.c_str(), X_OK) == 0) return beside;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    auto candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return Error{Code::kUnavailable, name + " is neither at " + beside.string() + " nor on the PATH",
               "install FreeRide's programs into one folder"};
}

std::filesystem::path shipped_plugin(const std::string& name) {
  std::error_code ignored;
  const auto above = program_folder().parent_path();
  for (const char* folder : {"lib/freeride/plugins", "plugins"}) {
    auto candidate = above / folder / name;
    if (std::filesystem::is_regular_file(candidate, ignored)) return candidate;
  }
  return {};
}

Result<std::filesystem::path> python_path() {
  std::error_code ignored;
  const auto above = program_folder().parent_path();
  for (const char* folder : {"share/freeride/python", "python", "../../hooks/python"}) {
    auto candidate = (above / folder).lexically_normal();
    if (std::filesystem::is_regular_file(candidate / "freeride/__init__.py", ignored)) return candidate;
  }
  return Error{Code::kNotFound, "the Python package freeride is not below " + above.string(),
               "install FreeRide's programs and its package together, or: pip install hooks/python of its source"};
}

Error exec_program(const std::string& name, const std::vector<std::string>& arguments) {
  const auto found = find_program(name);
  if (!found) return found.error();
  std::string program = found->string();
  std::vector<std::string> texts = arguments;
  std::vector<char*> argv{program.data()};
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return errno_error("cannot start " + program, errno);
}

}  // namespace freeride::ctl
