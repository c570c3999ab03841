#include "run_program.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "freeride/base/fd.hpp"

extern char** environ;

namespace freeride::ctl {
namespace {

constexpr size_t kMostOutput = 64u << 10;

}  // namespace

Result<Ran> run_program(const std::vector<std::string>& words) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  const Fd out(fds[0]);
  Fd in(fds[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, in.get(), STDERR_FILENO);
  std::vector<std::string> texts = words;
  std::vector<char*> argv;
  for (std::string& text : texts) argv.push_back(text.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return errno_error("cannot start " + words.front(), error);
  in.reset();
  Ran ran;
  std::array<char, 4096> buffer{};
  for (;;) {
    const ssize_t got = read(out.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    if (ran.out.size() < kMostOutput) ran.out.append(buffer.data(), static_cast<size_t>(got));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) ran.code = WEXITSTATUS(status);
  return ran;
}

std::string first_line(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_first_of("\r\n", begin) - begin);
}

}  // namespace freeride::ctl
