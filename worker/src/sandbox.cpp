#include "sandbox.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "freeride/base/log.hpp"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // the same on every architecture
#endif

namespace freeride::worker {
namespace {

// Address space that is not memory: libraries, thread stacks and allocator arenas that are reserved and hardly used.
constexpr int64_t kAddressSlackBytes = 4ll << 30;

void limit(int resource, int64_t bytes) {
  const rlimit value{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  setrlimit(static_cast<__rlimit_resource>(resource), &value);
}

// Runs between fork and exec in a process that had threads: nothing but system calls. Returns errno of what failed.
int become(const SandboxRequest& request, char* const* argv, char* const* environment, int null_fd) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal_number : {SIGPIPE, SIGINT, SIGTERM, SIGIO}) signal(signal_number, SIG_DFL);
  setsid();
  if (dup2(null_fd, 0) < 0 || dup2(request.output_fd, 1) < 0 || dup2(request.output_fd, 2) < 0) return errno;
  for (const int fd : request.keep_fds) {
    if (fcntl(fd, F_SETFD, 0) != 0) return errno;
  }
  if (!request.working_dir.empty() && chdir(request.working_dir.c_str()) != 0) return errno;
  if (!request.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : request.cores) CPU_SET(static_cast<size_t>(core), &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) return errno;
  }
  setpriority(PRIO_PROCESS, 0, 0);  // the worker's own is not the task's
  if (request.lowest_priority) {
    const sched_param param{};
    // Without it training would not go first: better not to run at all.
    if (sched_setscheduler(0, SCHED_IDLE, &param) != 0) return errno;
    // With autogroups the kernel weighs sessions before it looks at policies, and a new session weighs as much as the
    // training's. No such file: no autogroups.
    const int autogroup = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (autogroup >= 0) {
      [[maybe_unused]] const ssize_t written = write(autogroup, "19", 2);
      close(autogroup);
    }
  }
  limit(RLIMIT_CORE, 0);
#ifndef FREERIDE_SANITIZED  // a sanitizer's shadow memory counts as memory
  if (request.memory_limit_bytes > 0) {
    limit(RLIMIT_DATA, request.memory_limit_bytes);
    limit(RLIMIT_AS, request.memory_limit_bytes + kAddressSlackBytes);
  }
#endif
  execve(request.program.c_str(), argv, environment);
  return errno;
}

// This process's environment with the grants' variables in place of its own.
std::vector<std::string> environment_with(const SandboxGrants& grants) {
  std::vector<std::string> words;
  for (char** word = environ; word != nullptr && *word != nullptr; ++word) {
    const std::string_view text(*word);
    if (grants.env.count(std::string(text.substr(0, text.find('=')))) == 0) words.emplace_back(text);
  }
  for (const auto& [name, value] : grants.env) {
    std::string word = name;
    words.push_back(word.append("=").append(value));
  }
  return words;
}

// Development only: a process with resource limits, and nothing between it and the host.
class NoSandbox final : public Sandbox {
 public:
  const char* name() const override { return "none"; }

  std::string describe(int64_t memory_limit_bytes) const override {
    if (memory_limit_bytes <= 0) return "none";
    return "none (rlimit data " + std::to_string(memory_limit_bytes >> 20) + " MiB)";
  }

  TaskIdentity identity(uint64_t) override { return {geteuid(), getegid()}; }

  Result<Child> start(const SandboxRequest& request) override {
    if (!warned_) {
      spdlog::warn(
          "sandbox none: side tasks run as uid {} with no isolation from this host; for development and trusted "
          "plugins only",
          geteuid());
      warned_ = true;
    }
    std::vector<char*> argv{const_cast<char*>(request.program.c_str())};
    for (const std::string& arg : request.args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    std::vector<std::string> words = environment_with(request.grants);
    std::vector<char*> environment;
    for (std::string& word : words) environment.push_back(word.data());
    environment.push_back(nullptr);
    const Fd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null_fd.valid()) return errno_error("cannot open /dev/null", errno);
    if (access(request.program.c_str(), X_OK) != 0) {
      return errno_error("cannot start " + request.program, errno, "name the installed freeride-runner with --runner");
    }
    const pid_t pid = fork();
    if (pid < 0) return errno_error("cannot start a side task", errno, "see the limit on processes (ulimit -u)");
    if (pid == 0) {
      // Nobody waits for the exec: at the lowest priority it may take until the next bubble. A failure is said in the
      // log.
      const int err = become(request, argv.data(), environment.data(), null_fd.get());
      constexpr char kText[] = "error cannot start the runner; errno ";
      const char digits[] = {static_cast<char>('0' + err / 100 % 10), static_cast<char>('0' + err / 10 % 10),
                             static_cast<char>('0' + err % 10), '\n'};
      if (write(request.output_fd, kText, sizeof(kText) - 1) < 0 ||
          write(request.output_fd, digits, sizeof(digits)) < 0) {
        _exit(kCannotStart);
      }
      _exit(kCannotStart);
    }
    Child child{pid, Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)))};
    if (child.pidfd.valid()) return child;
    const int err = errno;
    ::kill(pid, SIGKILL);
    siginfo_t info{};
    waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
    return errno_error("cannot watch a side task", err);
  }

 private:
  bool warned_ = false;
};

}  // namespace

Result<std::unique_ptr<Sandbox>> make_sandbox(const std::string& name) {
  if (name == "none") return std::unique_ptr<Sandbox>(std::make_unique<NoSandbox>());
  return Error{Code::kInvalidArgument, "there is no sandbox called '" + name + "'", "--sandbox knows: none"};
}

}  // namespace freeride::worker
