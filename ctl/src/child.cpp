#include "child.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

namespace freeride::ctl {
namespace {

constexpr int kCannotStart = 127;

// In the child, where nothing may allocate or lock.
[[noreturn]] void become(char* const* words, int input, int log, pid_t parent) {
  (void)::setpgid(0, 0);
  (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kCannotStart);  // it has gone before the kernel knew of the bond
  (void)::dup2(input, STDIN_FILENO);
  (void)::dup2(log, STDOUT_FILENO);
  (void)::dup2(log, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  for (const int number : {SIGPIPE, SIGTERM, SIGINT}) (void)::signal(number, SIG_DFL);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv(words[0], words);
  ::_exit(kCannotStart);
}

Result<Fd> open_log(const std::filesystem::path& file) {
  std::error_code ignored;
  std::filesystem::rename(file, file.string() + ".1", ignored);  // the first time there is none
  Fd log(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0640));
  if (!log.valid()) return errno_error("cannot write the log " + file.string(), errno);
  return log;
}

}  // namespace

std::string Ending::text() const {
  if (signal == 0) return "with code " + std::to_string(code);
  return "by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

Result<Child> Child::start(const std::vector<std::string>& words, std::filesystem::path log) {
  const auto file = open_log(log);
  if (!file) return file.error();
  const Fd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input.valid()) return errno_error("cannot open /dev/null", errno);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(argv.data(), input.get(), file->get(), parent);
  if (pid < 0) return errno_error("cannot start " + words.front(), errno);
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // its number is its own until it is waited for
  if (process.valid()) return Child(pid, std::move(process), std::move(log));
  const int why = errno;
  (void)::kill(pid, SIGKILL);
  (void)::waitpid(pid, nullptr, 0);
  return errno_error("cannot watch " + words.front(), why);
}

std::optional<Ending> Child::ended() {
  siginfo_t info{};
  if (ending_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG) != 0 || info.si_pid != pid_)
    return ending_;
  if (info.si_code == CLD_EXITED) return ending_ = Ending{info.si_status, 0};
  return ending_ = Ending{-1, info.si_status};
}

void Child::send(int signal) const {
  (void)::syscall(SYS_pidfd_send_signal, process_.get(), signal, nullptr, 0);
}

void Child::ask_to_end() const {
  send(SIGTERM);
  send(SIGCONT);
}

void Child::kill() const {
  send(SIGKILL);
}

}  // namespace freeride::ctl
