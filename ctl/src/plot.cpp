#include "plot.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/files.hpp"
#include "json.hpp"

extern char** environ;

namespace freeride::ctl {
namespace {

// Runs the script with `argument` and `input`; its exit code, or -1 when it could not be started or was killed.
int run_script(const std::string& python, const std::string& argument, const std::string& input) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return -1;
  Fd out(fds[0]), in(fds[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDIN_FILENO);
  std::vector<std::string> words{python, "-c", kPlotScript, argument};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, python.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  out.reset();
  signal(SIGPIPE, SIG_IGN);  // NOLINT(bugprone-unused-return-value): it may end before it has read all
  (void)write_all(in.get(), input);
  in.reset();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

Result<std::string> find_plotter() {
  // The one on the PATH may be another than the one with matplotlib.
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    if (run_script(python, "--check", "") == 0) return std::string(python);
  }
  return Error{Code::kInternal, "no Python with matplotlib is there to draw with (tried python3 and /usr/bin/python3)",
               "install python3-matplotlib, or leave --plot out"};
}

Status plot_profile(const std::string& python, const std::string& path, const nlohmann::json& profile) {
  // A name that begins with a dash is no option of the script's.
  const int code = run_script(python, path.rfind('-', 0) == 0 ? "./" + path : path, dump(profile));
  if (code == 0) return {};
  return Error{Code::kInternal, "the picture " + path + " could not be drawn", "see the line above"};
}

}  // namespace freeride::ctl
