#include "runner.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>

namespace freeride::ctl {
namespace {
constexpr const char* kRunner = "freeride-runner";
}  // namespace

Result<std::filesystem::path> find_runner() {
  std::error_code ignored;
  const auto beside = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / kRunner;
  if (access(beside.c_str(), X_OK) == 0) return beside;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    auto candidate = std::filesystem::path(folder.empty() ? "." : folder) / kRunner;
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return Error{Code::kUnavailable, std::string(kRunner) + " is neither at " + beside.string() + " nor on the PATH",
               "install FreeRide's programs into one folder"};
}

Error exec_runner(const std::vector<std::string>& arguments) {
  const auto runner = find_runner();
  if (!runner) return runner.error();
  std::string program = runner->string();
  std::vector<std::string> texts = arguments;
  std::vector<char*> argv{program.data()};
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return errno_error("cannot start " + program, errno);
}

}  // namespace freeride::ctl
