#include "sandbox/sandbox_child.hpp"

#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434  // the same on every architecture
#endif

namespace freeride::worker {
namespace {

constexpr size_t kMostStages = 64;
// The kernel's weight of it is 110, of 1024.
constexpr int kTenthNice = 10;
constexpr const char* kTenthNiceText = "10";

void limit(int resource, int64_t bytes) {
  const rlimit value{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  setrlimit(static_cast<__rlimit_resource>(resource), &value);
}

void put(const char* file, const char* text) {
  const int fd = open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, text, std::strlen(text));
  close(fd);
}

// What failed, for the message; errno has why.
struct Failed {
  const char* what = nullptr;
  const char* which = "";
};

Failed make_stages(const ChildPlan& plan) {
  std::array<int, kMostStages> trees{};
  if (unshare(CLONE_NEWNS) != 0) return {"make a mount namespace"};
  // Nothing done here is seen outside; what is unmounted outside goes here, too.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return {"make its mounts private"};
  // All first, then the file system that hides what was under the stage.
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    trees[i] = static_cast<int>(syscall(SYS_open_tree, AT_FDCWD, plan.stages[i].source.c_str(),
                                        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
    if (trees[i] < 0) return {"take into its sandbox", plan.stages[i].source.c_str()};
  }
  if (mount("tmpfs", kStageRoot, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64k") != 0)
    return {"make a stage in", kStageRoot};
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const char* target = plan.stages[i].target.c_str();
    const bool made = plan.stages[i].folder ? mkdir(target, 0755) == 0 : mknod(target, S_IFREG | 0644, 0) == 0;
    if (!made || syscall(SYS_move_mount, trees[i], "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) != 0) {
      return {"take into its sandbox", plan.stages[i].source.c_str()};
    }
  }
  return {};
}

Failed become(const ChildPlan& plan, char* const* argv, char* const* envp, int null_fd) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int signal_number : {SIGPIPE, SIGINT, SIGTERM, SIGIO}) signal(signal_number, SIG_DFL);
  setsid();
  if (dup2(null_fd, 0) < 0 || dup2(plan.output_fd, 1) < 0 || dup2(plan.output_fd, 2) < 0) return {"set its output"};
  for (const int fd : plan.keep_fds) {
    if (fcntl(fd, F_SETFD, 0) != 0) return {"keep a descriptor"};
  }
  // Joining takes a lock that every fork and exit on this host waits for: not at the lowest priority.
  for (const int fd : plan.join_fds) {
    if (write(fd, "0", 1) != 1) return {"join its control group"};
  }
  if (!plan.stages.empty()) {
    if (const Failed failed = make_stages(plan); failed.what != nullptr) return failed;
  }
  if (!plan.cores.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : plan.cores) CPU_SET(static_cast<size_t>(core), &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) return {"keep to its cores"};
  }
  // The worker's own is not the task's. For good: RLIMIT_NICE is 0.
  setpriority(PRIO_PROCESS, 0, plan.priority == CpuPriority::kTenth ? kTenthNice : 0);
  if (plan.priority == CpuPriority::kTenth) put("/proc/self/autogroup", kTenthNiceText);  // see below
  if (plan.priority == CpuPriority::kIdle) {
    const sched_param param{};
    // Without it training would not go first: better not to run at all.
    if (sched_setscheduler(0, SCHED_IDLE, &param) != 0) return {"take the lowest priority"};
    // With autogroups the kernel weighs sessions before it looks at policies, and a new session weighs as much as the
    // training's. No such file: no autogroups.
    put("/proc/self/autogroup", "19");
  }
  if (plan.killed_first) put("/proc/self/oom_score_adj", "1000");
  limit(RLIMIT_CORE, 0);
  if (plan.data_limit_bytes > 0) limit(RLIMIT_DATA, plan.data_limit_bytes);
  if (plan.address_limit_bytes > 0) limit(RLIMIT_AS, plan.address_limit_bytes);
  if (!plan.working_dir.empty() && chdir(plan.working_dir.c_str()) != 0) return {"enter", plan.working_dir.c_str()};
  if (plan.uid != 0) {
    if (setgroups(0, nullptr) != 0 || setresgid(plan.uid, plan.uid, plan.uid) != 0 ||
        setresuid(plan.uid, plan.uid, plan.uid) != 0) {
      return {"become a user of its own"};
    }
  }
  execve(plan.program.c_str(), argv, envp);
  return {"run", plan.program.c_str()};
}

void say(int fd, const char* text) {
  [[maybe_unused]] const ssize_t written = write(fd, text, std::strlen(text));
}

void complain(int fd, const Failed& failed, int error) {
  const std::array<char, 5> digits{static_cast<char>('0' + error / 100 % 10), static_cast<char>('0' + error / 10 % 10),
                                   static_cast<char>('0' + error % 10), '\n', '\0'};
  say(fd, "error the task could not ");
  say(fd, failed.what);
  say(fd, " ");
  say(fd, failed.which);
  say(fd, ": errno ");
  say(fd, digits.data());
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  list.reserve(texts.size() + 1);
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

}  // namespace

Result<Child> spawn(const ChildPlan& plan) {
  if (plan.stages.size() > kMostStages) {
    return Error{Code::kExhausted, "a task may see " + std::to_string(kMostStages) + " paths of the host at most", ""};
  }
  const auto argv = pointers(plan.argv);
  const auto env = pointers(plan.env);
  char* const* envp = plan.own_env ? env.data() : environ;
  const Fd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd.valid()) return errno_error("cannot open /dev/null", errno);
  const pid_t pid = fork();
  if (pid < 0) return errno_error("cannot start a side task", errno, "see the limit on processes (ulimit -u)");
  if (pid == 0) {
    // Nobody waits for the exec: at the lowest priority it may take until the next bubble. A failure is said in the
    // log.
    const Failed failed = become(plan, argv.data(), envp, null_fd.get());
    complain(plan.output_fd, failed, errno);
    _exit(kCannotStart);
  }
  Child child{pid, Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))), nullptr};
  if (child.pidfd.valid()) return child;
  const int err = errno;
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
  return errno_error("cannot watch a side task", err);
}

}  // namespace freeride::worker
