#include "sandbox/sandbox_child.hpp"

#include <fcntl.h>
#include <grp.h>
#include <linux/mount.h>
#include <linux/openat2.h>
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

#include "freeride/base/end_signals.hpp"

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
  int status = kCannotStart;
};

Failed not_given(const char* what, const std::string& source) {
  return {what, source.c_str(), kNotGiven};
}

int open_path(int folder, const char* path, uint64_t flags, uint64_t resolve) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC | flags;
  how.resolve = resolve | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(syscall(SYS_openat2, folder, path, &how, sizeof how));
}

// This process's rights become the user's until back_to_root(); the saved user stays root.
bool become_user(const FileUser& user) {
  return setgroups(user.groups.size(), user.groups.data()) == 0 && setresgid(-1, user.gid, -1) == 0 &&
         setresuid(-1, user.uid, -1) == 0;
}
bool back_to_root() {
  return setresuid(-1, 0, -1) == 0 && setresgid(-1, 0, -1) == 0;
}

// What the user may open. The folder's own path has no links (RESOLVE_NO_SYMLINKS); below it those count that stay
// there (RESOLVE_BENEATH). Neither device nor pipe: opening one could do something.
Failed open_as_user(const ChildPlan::Grant& grant, int& fd) {
  const int folder = open_path(AT_FDCWD, grant.folder.c_str(), O_DIRECTORY, RESOLVE_NO_SYMLINKS);
  if (folder < 0) return not_given("reach", grant.folder);
  fd = open_path(folder, grant.path.c_str(), 0, RESOLVE_BENEATH);
  if (fd < 0) return not_given("open", grant.source);
  close(folder);
  struct stat info {};
  if (fstat(fd, &info) != 0) return not_given("open", grant.source);
  const bool is_folder = S_ISDIR(info.st_mode);
  if (!is_folder && !S_ISREG(info.st_mode)) {
    errno = EINVAL;
    return not_given("be given what is neither file nor folder,", grant.source);
  }
  if (syscall(SYS_faccessat2, fd, "", R_OK | (is_folder ? X_OK : 0), AT_EACCESS | AT_EMPTY_PATH) != 0)
    return not_given("read", grant.source);
  if (grant.write && syscall(SYS_faccessat2, fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) != 0)
    return not_given("write", grant.source);
  return {};
}

void to_text(pid_t number, char* text) {
  std::array<char, 12> digits{};
  size_t count = 0;
  for (; number > 0 || count == 0; number /= 10) digits[count++] = static_cast<char>('0' + number % 10);
  while (count > 0) *text++ = digits[--count];
  *text = '\0';
}

// A file of process `pid` in /proc.
int open_of(pid_t pid, const char* name, int flags) {
  std::array<char, 64> path{};
  size_t length = 0;
  const auto add = [&](const char* text) {
    while (*text != '\0' && length + 1 < path.size()) path[length++] = *text++;
  };
  std::array<char, 16> number{};
  to_text(pid, number.data());
  for (const char* part : {"/proc/", static_cast<const char*>(number.data()), name}) add(part);
  return open(path.data(), flags | O_CLOEXEC);
}

bool put_map(pid_t pid, const char* name, const std::string& text) {
  const int fd = open_of(pid, name, O_WRONLY);
  const bool put = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  return put;
}

// A user namespace that says whose files appear as whose. A process has to be in it when it is made.
int make_map(const ChildPlan& plan) {
  const auto pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
  if (pid == 0) {
    for (;;) pause();
  }
  if (pid < 0) return -1;
  const bool mapped = (put_map(pid, "/uid_map", plan.map) || put_map(pid, "/uid_map", plan.least_map)) &&
                      (put_map(pid, "/gid_map", plan.group_map) || put_map(pid, "/gid_map", plan.least_group_map));
  const int fd = mapped ? open_of(pid, "/ns/user", O_RDONLY) : -1;
  const int error = errno;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  errno = error;
  return fd;
}

// The tree of what was opened, with the mounts in it: without them would be seen what they hide.
Failed clone_tree(const ChildPlan::Grant& grant, int from, int map, int& tree) {
  tree = static_cast<int>(
      syscall(SYS_open_tree, from, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
  if (tree < 0) return not_given("take into its sandbox", grant.source);
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_IDMAP;
  if (!grant.write) attr.attr_set |= MOUNT_ATTR_RDONLY;
  attr.userns_fd = static_cast<uint64_t>(map);
  const auto set = [&] {
    return syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr);
  };
  if (set() == 0) return {};
  if (grant.write)
    return not_given("write with its user's rights, which this file system cannot map, in", grant.source);
  // What everybody may read can be read without.
  attr.attr_set &= ~static_cast<uint64_t>(MOUNT_ATTR_IDMAP);
  attr.userns_fd = 0;
  return set() == 0 ? Failed{} : not_given("take into its sandbox", grant.source);
}

Failed clone_granted(const ChildPlan& plan, std::array<int, ChildPlan::kMostGrants>& trees) {
  if (plan.grants.empty()) return {};
  const int map = make_map(plan);
  if (map < 0) return not_given("map its user's number for", plan.grants.front().source);
  for (size_t i = 0; i < plan.grants.size(); ++i) {
    int fd = -1;
    if (!become_user(plan.rights)) return not_given("take on its user's rights for", plan.grants[i].source);
    const Failed opened = open_as_user(plan.grants[i], fd);
    const int error = errno;
    if (!back_to_root()) return not_given("give back its user's rights for", plan.grants[i].source);
    errno = error;
    if (opened.what != nullptr) return opened;
    if (const Failed cloned = clone_tree(plan.grants[i], fd, map, trees[i]); cloned.what != nullptr) return cloned;
    close(fd);
  }
  close(map);
  return {};
}

Failed make_stages(const ChildPlan& plan) {
  std::array<int, kMostStages> trees{};
  std::array<int, ChildPlan::kMostGrants> granted{};
  if (unshare(CLONE_NEWNS) != 0) return {"make a mount namespace"};
  // Nothing done here is seen outside; what is unmounted outside goes here, too.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return {"make its mounts private"};
  // All first, then the file system that hides what was under the stage.
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    trees[i] = static_cast<int>(syscall(SYS_open_tree, AT_FDCWD, plan.stages[i].source.c_str(),
                                        OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE));
    if (trees[i] < 0) return {"take into its sandbox", plan.stages[i].source.c_str()};
  }
  if (const Failed failed = clone_granted(plan, granted); failed.what != nullptr) return failed;
  if (mount("tmpfs", kStageRoot, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64k") != 0)
    return {"make a stage in", kStageRoot};
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const char* target = plan.stages[i].target.c_str();
    const bool made = plan.stages[i].folder ? mkdir(target, 0755) == 0 : mknod(target, S_IFREG | 0644, 0) == 0;
    if (!made || syscall(SYS_move_mount, trees[i], "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) != 0) {
      return {"take into its sandbox", plan.stages[i].source.c_str()};
    }
  }
  for (size_t i = 0; i < plan.grants.size(); ++i) {
    const char* target = plan.grants[i].target.c_str();
    struct stat info {};
    const bool made = fstat(granted[i], &info) == 0 &&
                      (S_ISDIR(info.st_mode) ? mkdir(target, 0755) == 0 : mknod(target, S_IFREG | 0644, 0) == 0);
    if (!made || syscall(SYS_move_mount, granted[i], "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) != 0)
      return not_given("take into its sandbox", plan.grants[i].source);
  }
  return {};
}

Failed become(const ChildPlan& plan, char* const* argv, char* const* envp, int null_fd) {
  const sigset_t stray = stray_signals();
  sigprocmask(SIG_SETMASK, &stray, nullptr);
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
  if (!plan.stages.empty() || !plan.grants.empty()) {
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
  say(fd, "error the task could not ");
  say(fd, failed.what);
  if (*failed.which != '\0') say(fd, " ");
  say(fd, failed.which);
  say(fd, ": ");
  const char* why = strerrordesc_np(error);  // without locale, so without a lock
  if (error == EXDEV || error == ELOOP) why = "a link leads out of the folder that is open to tasks, or is absolute";
  say(fd, why == nullptr ? "unknown error" : why);
  say(fd, "\n");
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
  if (plan.stages.size() > kMostStages || plan.grants.size() > ChildPlan::kMostGrants) {
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
    _exit(failed.status);
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
