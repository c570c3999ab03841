#include "program_process.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "freeride/pages.h"
#include "last_words.hpp"
#include "task_process.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace freeride::runner {
namespace {

using policy::Cause;
using policy::VerdictKind;

constexpr int kGateFd = 4, kOutOfTheWay = 5;

bool is_executable_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void reject(const std::string& reason) {
  write_last_words(kLastWordsFd, last_words(VerdictKind::kRejected, Cause::kProgram, FREERIDE_IN_LOAD, reason.c_str()));
  _exit(EXIT_FAILURE);
}

// Why there is no such program, as far as can be told.
std::string why_not(const std::string& name, const std::string& path) {
  if (name.find('/') == std::string::npos)
    return "there is no program '" + name + "' on its worker's PATH, which is " + path + "; give its whole path";
  if (access(name.c_str(), F_OK) != 0) return errno_error("its program cannot be started: " + name, errno).text();
  if (access(name.c_str(), X_OK) != 0)
    return "its program " + name + " is not executable; chmod +x, or name its interpreter: python3 " + name;
  return "its program " + name + " is no file";
}

}  // namespace

std::string find_program(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) return is_executable_file(name) ? name : "";
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find(':', at), path.size());
    const std::string folder = path.substr(at, end - at);
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(file)) return file;
    at = end + 1;
  }
  return "";
}

void run_program(const Job& job, int last_words_fd, int gate_fd) {
  set_up_process(job);
  confine_process(job, last_words_fd);
  const int words = fcntl(last_words_fd, F_DUPFD_CLOEXEC, kOutOfTheWay);
  const int gate = fcntl(gate_fd, F_DUPFD_CLOEXEC, kOutOfTheWay);
  dup3(words, kLastWordsFd, O_CLOEXEC);
  dup3(gate, kGateFd, O_CLOEXEC);
  close_range(kOutOfTheWay, ~0U, 0);
  enter_working_dir(job, kLastWordsFd);
  const char* const set = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): one thread
  const std::string path = set == nullptr ? "/usr/local/bin:/usr/bin:/bin" : set;
  const std::string& name = job.program.front();
  const std::string file = find_program(name, path);
  if (file.empty()) reject(why_not(name, path));
  std::vector<char*> argv;
  argv.reserve(job.program.size() + 1);
  for (const std::string& word : job.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  signal(SIGPIPE, SIG_DFL);
  char go = 0;
  if (write(kGateFd, &go, 1) != 1) _exit(EXIT_FAILURE);
  ssize_t got = 0;
  while ((got = read(kGateFd, &go, 1)) < 0 && errno == EINTR) {
  }
  if (got != 1) _exit(EXIT_FAILURE);
  execve(file.c_str(), argv.data(), environ);
  if (errno == ENOENT) reject("its program " + file + " names an interpreter in its first line that is not there");
  if (errno == ENOEXEC) {  // as a shell does it: a script without a first line that names one
    argv.insert(argv.begin() + 1, const_cast<char*>(file.c_str()));
    argv[0] = const_cast<char*>("sh");
    execve("/bin/sh", argv.data(), environ);
  }
  reject(errno_error("its program cannot be started: " + file, errno).text());
}

}  // namespace freeride::runner
