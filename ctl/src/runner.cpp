#include "runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "freeride/base/paths.hpp"

namespace freeride::ctl {

Result<std::filesystem::path> find_program(const std::string& name) {
  for (auto& file : {find_beside(name), find_on_path(name)}) {
    if (!file.empty()) return file;
  }
  return Error{Code::kUnavailable, name + " is neither at " + (program_folder() / name).string() + " nor on the PATH",
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

std::vector<std::string> shipped_plugins() {
  std::error_code ignored;
  const auto above = program_folder().parent_path();
  for (const char* folder : {"lib/freeride/plugins", "plugins"}) {
    std::vector<std::string> names;
    std::filesystem::directory_iterator at(above / folder, ignored);
    for (const std::filesystem::directory_iterator end; !ignored && at != end; at.increment(ignored)) {
      const auto& path = at->path();
      if ((path.extension() == ".so" || path.extension() == ".py") && at->is_regular_file(ignored))
        names.push_back(path.filename().string());
    }
    if (names.empty()) continue;
    std::sort(names.begin(), names.end());
    return names;
  }
  return {};
}

Result<std::filesystem::path> python_path() {
  std::error_code ignored;
  const auto above = program_folder().parent_path();
  for (const char* folder : {"share/freeride/python", "python", "../..", "../../hooks/python"}) {
    auto candidate = (above / folder).lexically_normal();
    if (!candidate.has_filename()) candidate = candidate.parent_path();  // "../.." ends with a slash
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
