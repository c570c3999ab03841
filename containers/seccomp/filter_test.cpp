// What the filters answer, read out of the programs that are installed: for every system call, and for the arguments
// that decide. Whatever is allowed has its reason here, in a table that does not know side-task.policy.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "freeride/seccomp_filters.hpp"

namespace {

using freeride::seccomp::kPlugin;
using freeride::seccomp::kProgram;
using freeride::seccomp::kSupervisor;
using Args = std::array<uint64_t, 6>;

constexpr int kMostCalls = 2048;  // beyond any that there is
constexpr uint32_t kX32 = 0x40000000;

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#else
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#endif

/// The kernel's answer: the classic BPF machine, with the instructions that seccomp may have.
uint32_t evaluate(std::span<const sock_filter> program, const seccomp_data& data) {
  uint32_t a = 0, x = 0;
  std::array<uint32_t, BPF_MEMWORDS> memory{};
  for (size_t pc = 0; pc < program.size(); ++pc) {
    const sock_filter& f = program[pc];
    const uint32_t operand = BPF_SRC(f.code) == BPF_X ? x : f.k;
    const auto jump = [&](bool taken) { pc += taken ? f.jt : f.jf; };
    switch (f.code) {
      case BPF_LD | BPF_W | BPF_ABS:
        if (f.k % 4 != 0 || f.k + 4 > sizeof(data)) throw std::runtime_error("reads past its data");
        std::memcpy(&a, reinterpret_cast<const char*>(&data) + f.k, 4);
        break;
      case BPF_LD | BPF_IMM:
        a = f.k;
        break;
      case BPF_LDX | BPF_IMM:
        x = f.k;
        break;
      case BPF_LD | BPF_MEM:
        a = memory.at(f.k);
        break;
      case BPF_LDX | BPF_MEM:
        x = memory.at(f.k);
        break;
      case BPF_ST:
        memory.at(f.k) = a;
        break;
      case BPF_MISC | BPF_TAX:
        x = a;
        break;
      case BPF_ALU | BPF_AND | BPF_K:
      case BPF_ALU | BPF_AND | BPF_X:
        a &= operand;
        break;
      case BPF_JMP | BPF_JA:
        pc += f.k;
        break;
      case BPF_JMP | BPF_JEQ | BPF_K:
      case BPF_JMP | BPF_JEQ | BPF_X:
        jump(a == operand);
        break;
      case BPF_JMP | BPF_JGT | BPF_K:
      case BPF_JMP | BPF_JGT | BPF_X:
        jump(a > operand);
        break;
      case BPF_JMP | BPF_JGE | BPF_K:
      case BPF_JMP | BPF_JGE | BPF_X:
        jump(a >= operand);
        break;
      case BPF_JMP | BPF_JSET | BPF_K:
      case BPF_JMP | BPF_JSET | BPF_X:
        jump((a & operand) != 0);
        break;
      case BPF_RET | BPF_K:
        return f.k;
      case BPF_RET | BPF_A:
        return a;
      default:
        throw std::runtime_error("no instruction that this test knows: " + std::to_string(f.code));
    }
  }
  throw std::runtime_error("ends without an answer");
}

uint32_t answer(std::span<const sock_filter> program, uint32_t number, const Args& args = {}, uint32_t arch = kArch) {
  seccomp_data data{};
  data.nr = static_cast<int>(number);
  data.arch = arch;
  std::copy(args.begin(), args.end(), data.args);
  return evaluate(program, data);
}

std::string name_of(int number) {
  char* text = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number);
  std::string name = text == nullptr ? "" : text;
  std::free(text);
  return name;
}

constexpr uint32_t error(int number) {
  return SECCOMP_RET_ERRNO | static_cast<uint32_t>(number);
}

std::set<std::string> words(const char* text) {
  std::set<std::string> found;
  std::istringstream in(text);
  for (std::string word; in >> word;) found.insert(word);
  return found;
}

struct Reason {
  const char* why;
  const char* calls;
};

// Whatever its arguments are.
const std::vector<Reason> kAllowed{
    {"files of its mounts: the scratch folder is memory of a fixed size, all else is read-only",
     "access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fallocate "
     "fchdir fchown fchownat fgetxattr flistxattr fremovexattr fsetxattr fstat fstatfs ftruncate "
     "getcwd "
     "getdents getdents64 getxattr lchown lgetxattr link linkat listxattr llistxattr lremovexattr lseek lsetxattr "
     "lstat "
     "mkdir mkdirat newfstatat pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat "
     "readv "
     "removexattr rename renameat renameat2 rmdir sendfile setxattr splice stat statfs statx symlink symlinkat tee "
     "truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev"},
    {"flushes one file: the scratch folder has no disk, and what is read-only has nothing of the task's to write",
     "fsync fdatasync msync"},
    {"locks of files: advisory, on files that it sees", "flock"},
    {"waiting and timers of its own process",
     "epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 inotify_add_watch "
     "inotify_init inotify_init1 inotify_rm_watch poll ppoll pselect6 select signalfd signalfd4 timerfd_create "
     "timerfd_gettime timerfd_settime pause nanosleep clock_nanosleep alarm getitimer setitimer timer_create "
     "timer_delete timer_getoverrun timer_gettime timer_settime"},
    {"memory of its own, within its control group's or its rlimits",
     "brk madvise mincore mlock mlock2 mlockall mmap mprotect mremap munlock munlockall munmap memfd_create membarrier "
     "pkey_alloc pkey_free pkey_mprotect process_mrelease get_mempolicy set_mempolicy mbind"},
    {"System V objects of its own IPC namespace",
     "shmat shmctl shmdt shmget semctl semget semop semtimedop msgctl msgget msgrcv msgsnd"},
    {"threads of its own process, which the clock of its lease counts",
     "arch_prctl exit exit_group futex futex_waitv get_robust_list set_robust_list set_tid_address rseq "
     "restart_syscall "
     "sched_yield gettid"},
    {"asks the scheduler, and changes nothing",
     "sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min "
     "sched_rr_get_interval getpriority ioprio_get getcpu"},
    {"signals: its process namespace has itself and its supervisor, to whom no signal is an order",
     "kill tgkill tkill rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait "
     "sigaltstack"},
    {"looks at processes of its namespace: children it has none", "wait4 waitid pidfd_open"},
    {"reads clocks", "clock_getres clock_gettime gettimeofday time times"},
    {"asks who it is and what it may",
     "getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getresgid getresuid getrlimit getrusage getsid "
     "getuid capget sysinfo uname getrandom"},
    {"changes among what there is: one user, one group, no capability",
     "setfsgid setfsuid setgid setregid setresgid setresuid setreuid setuid setgroups capset"},
    {"a process group of its own, in its session", "setpgid"},
    {"devices that it was given, and terminals, of which it has none", "ioctl"},
    {"attributes of its own process; no new privileges is for good", "prctl"},
    {"pipes and sockets of its network namespace, which has no way out unless the user asked for one",
     "accept accept4 bind connect getpeername getsockname getsockopt listen pipe pipe2 recvfrom recvmmsg recvmsg "
     "sendmmsg sendmsg sendto setsockopt shutdown socketpair"},
};

struct Case {
  const char* call;
  Args args;
  uint32_t expected;
  const char* why;
};

constexpr uint64_t kHigh = 0xffffffff00000000;  // of an int argument the kernel sees the low half

const std::vector<Case> kByArgument{
    {"clone", {CLONE_VM | CLONE_THREAD | CLONE_SIGHAND}, SECCOMP_RET_ALLOW, "a thread"},
    {"clone", {SIGCHLD}, error(EPERM), "a process, which its lease's clock would not see"},
    {"clone", {CLONE_NEWUSER | SIGCHLD}, error(EPERM), "a namespace"},
    {"socket", {AF_UNIX}, SECCOMP_RET_ALLOW, "held by the network namespace"},
    {"socket", {AF_INET}, SECCOMP_RET_ALLOW, "held by the network namespace"},
    {"socket", {AF_INET6}, SECCOMP_RET_ALLOW, "held by the network namespace"},
    {"socket", {AF_NETLINK}, SECCOMP_RET_ALLOW, "names of its own network namespace"},
    {"socket", {AF_VSOCK}, error(ENOSYS), "reaches the hypervisor from any namespace"},
    {"socket", {AF_PACKET}, error(ENOSYS), "raw frames"},
    {"socket", {AF_ALG}, error(ENOSYS), "the kernel's cryptography"},
    {"socket", {kHigh | AF_VSOCK}, error(ENOSYS), "the high half is not looked at"},
    {"open", {0, O_RDWR | O_CREAT | O_CLOEXEC}, SECCOMP_RET_ALLOW, "through the page cache"},
    {"open", {0, O_RDONLY | O_DIRECT}, error(EINVAL), "past the page cache: the disk's time"},
    {"open", {0, kHigh | O_DIRECT}, error(EINVAL), "the high half is not looked at"},
    {"open", {0, O_RDONLY, S_ISUID}, SECCOMP_RET_ALLOW, "makes no file: the mode is anything"},
    {"open", {0, O_RDWR | O_CREAT, S_ISUID | 0755}, error(EPERM), "would run with its owner's rights"},
    {"openat", {0, 0, O_RDWR | O_CREAT, S_ISGID | 0755}, error(EPERM), "would run with its group's rights"},
    {"openat", {0, 0, O_RDWR | O_TMPFILE, S_ISUID | S_ISGID}, error(EPERM), "may be given a name later"},
    {"openat", {0, 0, O_RDWR | O_TMPFILE, 0600}, SECCOMP_RET_ALLOW, "an ordinary file"},
    {"openat", {0, 0, O_RDWR | O_CREAT, kHigh | 01777}, SECCOMP_RET_ALLOW, "an ordinary file"},
    {"creat", {0, 0644}, SECCOMP_RET_ALLOW, "an ordinary file"},
    {"creat", {0, S_ISUID | 0755}, error(EPERM), "would run with its owner's rights"},
    {"chmod", {0, 0755}, SECCOMP_RET_ALLOW, "an ordinary file"},
    {"chmod", {0, S_ISUID | 0755}, error(EPERM), "would run with its owner's rights"},
    {"fchmod", {0, 01700}, SECCOMP_RET_ALLOW, "an ordinary file"},
    {"fchmod", {0, S_ISGID | 0755}, error(EPERM), "would run with its group's rights"},
    {"fchmodat", {0, 0, 0644}, SECCOMP_RET_ALLOW, "an ordinary file"},
    {"fchmodat", {0, 0, kHigh | S_ISUID | S_ISGID | 0755}, error(EPERM), "would run with both"},
    {"openat", {0, 0, O_RDONLY}, SECCOMP_RET_ALLOW, "through the page cache"},
    {"openat", {0, O_DIRECT, O_RDONLY}, SECCOMP_RET_ALLOW, "the flags are the third"},
    {"openat", {0, 0, O_WRONLY | O_DIRECT}, error(EINVAL), "past the page cache: the disk's time"},
    {"fcntl", {0, F_GETFL}, SECCOMP_RET_ALLOW, "reads flags"},
    {"fcntl", {0, F_DUPFD_CLOEXEC, O_DIRECT}, SECCOMP_RET_ALLOW, "a number, not flags"},
    {"fcntl", {0, F_SETFL, O_NONBLOCK}, SECCOMP_RET_ALLOW, "flags of its own descriptor"},
    {"fcntl", {0, F_SETFL, O_NONBLOCK | O_DIRECT}, error(EINVAL), "past the page cache, later"},
    {"fcntl", {0, kHigh | F_SETFL, O_DIRECT}, error(EINVAL), "the high half is not looked at"},
    {"fcntl", {0, F_SETOWN, 1}, error(ENOSYS), "signals to others"},
    {"fcntl", {0, F_SETSIG, SIGTERM}, error(ENOSYS), "any signal, to others"},
    {"fcntl", {0, F_SETLEASE, F_RDLCK}, error(ENOSYS), "holds up others who open the file"},
    {"fadvise64", {0, 0, 0, POSIX_FADV_SEQUENTIAL}, SECCOMP_RET_ALLOW, "of its own reading"},
    {"fadvise64", {0, 0, 0, POSIX_FADV_DONTNEED}, error(0), "would take pages from everybody; advice is not taken"},
    {"prlimit64", {0, RLIMIT_STACK, 1}, SECCOMP_RET_ALLOW, "its own limits, which only fall"},
    {"prlimit64", {1, RLIMIT_STACK, 1}, error(EPERM), "its supervisor's"},
    {"sched_setaffinity", {0}, SECCOMP_RET_ALLOW, "itself, within its cpuset"},
    {"sched_setaffinity", {1}, error(EPERM), "its supervisor"},
    {"sched_setattr", {0}, SECCOMP_RET_ALLOW, "itself; RLIMIT_NICE and RLIMIT_RTPRIO are 0"},
    {"sched_setattr", {1}, error(EPERM), "its supervisor"},
    {"sched_setparam", {0}, SECCOMP_RET_ALLOW, "as sched_setattr"},
    {"sched_setparam", {1}, error(EPERM), "as sched_setattr"},
    {"sched_setscheduler", {0}, SECCOMP_RET_ALLOW, "as sched_setattr"},
    {"sched_setscheduler", {1}, error(EPERM), "as sched_setattr"},
    {"setpriority", {PRIO_PROCESS, 0, 19}, SECCOMP_RET_ALLOW, "itself, and only lower"},
    {"setpriority", {PRIO_PROCESS, 1, 19}, error(ENOSYS), "its supervisor"},
    {"setpriority", {PRIO_USER, 0, 19}, error(ENOSYS), "all of its user's"},
    {"ioprio_set", {1, 0}, SECCOMP_RET_ALLOW, "itself"},
    {"ioprio_set", {1, 1}, error(ENOSYS), "its supervisor"},
};

// Refused with an answer that programs understand; whatever else is not allowed answers ENOSYS, as on a kernel that
// lacks it.
const std::map<std::string, int> kRefused{
    {"rt_sigqueueinfo", EPERM},    // a signal in somebody else's name
    {"rt_tgsigqueueinfo", EPERM},  //
    {"pidfd_send_signal", EPERM},  //
    {"sync", EPERM},               // everybody's writes go to the disk at once
    {"syncfs", EPERM},             //
    {"sync_file_range", EPERM},    //
    {"ptrace", EPERM},             // debuggers, crash reporters, leak checkers
    {"process_vm_readv", EPERM},   // MPI's copies between processes, crash reporters
    {"process_vm_writev", EPERM},  //
    {"process_madvise", EPERM},    //
    {"kcmp", EPERM},               // graphics libraries
    {"pidfd_getfd", EPERM},        // PyTorch's memory that processes share
    {"migrate_pages", EPERM},      // libnuma, hwloc
    {"move_pages", EPERM},         //
    {"mount", EPERM},              // FUSE tries it before its helper
    {"umount2", EPERM},            //
    {"pivot_root", EPERM},         //
    {"chroot", EPERM},             //
    {"setns", EPERM},              //
    {"unshare", EPERM},            // sandboxes within
    {"name_to_handle_at", EPERM},  // asks for the identity of a mount
    {"open_by_handle_at", EPERM},  // past every mount
    {"quotactl", EPERM},           //
    {"swapon", EPERM},             //
    {"swapoff", EPERM},            //
    {"acct", EPERM},               //
    {"bpf", EPERM},                //
    {"userfaultfd", EPERM},        //
    {"add_key", EPERM},            // Kerberos
    {"request_key", EPERM},        //
    {"keyctl", EPERM},             //
    {"init_module", EPERM},        //
    {"finit_module", EPERM},       //
    {"delete_module", EPERM},      //
    {"kexec_load", EPERM},         //
    {"kexec_file_load", EPERM},    //
    {"reboot", EPERM},             //
    {"syslog", EPERM},             // dmesg
    {"settimeofday", EPERM},       //
    {"clock_settime", EPERM},      //
    {"clock_adjtime", EPERM},      // programs ask it how good the clock is
    {"adjtimex", EPERM},           //
    {"sethostname", EPERM},        //
    {"setdomainname", EPERM},      //
    {"vhangup", EPERM},            //
    {"iopl", EPERM},               // libpci looks for buses
    {"ioperm", EPERM},             //
    {"fork", EPERM},               // a process of its own
    {"vfork", EPERM},              //
    {"execve", EPERM},             //
    {"execveat", EPERM},           //
    {"setsid", EPERM},             // weighs as much as training's session
    {"seccomp", EPERM},
    {"setrlimit", EPERM},
    {"mknod", EPERM},
    {"mknodat", EPERM},
    {"fanotify_init", EPERM},
    {"fanotify_mark", EPERM},
    {"personality", EPERM},
    {"landlock_create_ruleset", EPERM},
    {"landlock_add_rule", EPERM},
    {"landlock_restrict_self", EPERM},
    {"perf_event_open", EACCES},
};

// Of the arguments, those that tell filters apart, and garbage.
const std::vector<Args> kProbes{{0, 0, 0, 0, 0, 0},
                                {1, 1, 1, 1, 1, 1},
                                {kHigh, kHigh, kHigh, kHigh, kHigh, kHigh},
                                {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull},
                                {O_DIRECT, O_DIRECT, O_DIRECT, O_DIRECT, O_DIRECT, O_DIRECT}};

}  // namespace

TEST_CASE("seccomp: every system call that a plugin may make has a reason", "[seccomp]") {
  std::map<std::string, const char*> reasons;
  for (const Reason& reason : kAllowed) {
    for (const std::string& call : words(reason.calls)) {
      INFO(call);
      CHECK(reasons.emplace(call, reason.why).second);
    }
  }
  std::set<std::string> by_argument;
  for (const Case& one : kByArgument) by_argument.insert(one.call);
  std::set<std::string> seen;
  for (int number = 0; number < kMostCalls; ++number) {
    const std::string name = name_of(number);
    INFO(number << " " << name);
    if (by_argument.count(name) != 0) continue;
    for (const Args& args : kProbes) {
      const uint32_t said = answer(kPlugin, static_cast<uint32_t>(number), args);
      if (reasons.count(name) != 0) {
        REQUIRE(said == SECCOMP_RET_ALLOW);
        seen.insert(name);
      } else if (const auto refused = kRefused.find(name); refused != kRefused.end()) {
        REQUIRE(said == error(refused->second));
      } else {
        REQUIRE(said == error(ENOSYS));
      }
    }
  }
  // A name that this kernel's headers lack would be a reason for nothing.
  for (const auto& [call, why] : reasons) {
    INFO(call);
    CHECK((seen.count(call) != 0 || seccomp_syscall_resolve_name(call.c_str()) < 0));
  }
}

TEST_CASE("seccomp: where arguments decide, each has its answer", "[seccomp]") {
  for (const Case& one : kByArgument) {
    INFO(one.call << ": " << one.why);
    const int number = seccomp_syscall_resolve_name(one.call);
    if (number < 0) continue;  // of another architecture
    CHECK(answer(kPlugin, static_cast<uint32_t>(number), one.args) == one.expected);
  }
}

TEST_CASE("seccomp: a program may do what a plugin may, and have processes in the namespaces that there are",
          "[seccomp]") {
  const std::set<std::string> processes{"fork", "vfork", "execve", "execveat"};
  for (int number = 0; number < kMostCalls; ++number) {
    const std::string name = name_of(number);
    INFO(number << " " << name);
    if (name == "clone") continue;
    for (const Args& args : kProbes) {
      const uint32_t said = answer(kProgram, static_cast<uint32_t>(number), args);
      if (processes.count(name) != 0) {
        REQUIRE(said == SECCOMP_RET_ALLOW);
      } else if (name == "setsid") {
        REQUIRE(said == error(0));  // another session would weigh as much as training
      } else {
        REQUIRE(said == answer(kPlugin, static_cast<uint32_t>(number), args));
      }
    }
  }
  const auto clone = [](uint64_t flags) {
    return answer(kProgram, static_cast<uint32_t>(seccomp_syscall_resolve_name("clone")), {flags});
  };
  CHECK(clone(SIGCHLD) == SECCOMP_RET_ALLOW);
  CHECK(clone(CLONE_VM | CLONE_VFORK | SIGCHLD) == SECCOMP_RET_ALLOW);
  CHECK(clone(CLONE_VM | CLONE_THREAD | CLONE_SIGHAND) == SECCOMP_RET_ALLOW);
  for (const uint64_t space :
       {uint64_t{CLONE_NEWNS}, uint64_t{CLONE_NEWCGROUP}, uint64_t{CLONE_NEWUTS}, uint64_t{CLONE_NEWIPC},
        uint64_t{CLONE_NEWUSER}, uint64_t{CLONE_NEWPID}, uint64_t{CLONE_NEWNET}}) {
    CHECK(clone(space | SIGCHLD) == error(ENOSYS));
    CHECK(clone(kHigh | space | SIGCHLD) == error(ENOSYS));
  }
}

TEST_CASE("seccomp: no call ends a task: libraries try many of them, and do without", "[seccomp]") {
  for (const std::span<const sock_filter> program :
       {std::span<const sock_filter>(kPlugin), std::span<const sock_filter>(kProgram),
        std::span<const sock_filter>(kSupervisor)}) {
    for (uint32_t number = 0; number < kMostCalls; ++number) {
      INFO(name_of(static_cast<int>(number)));
      for (const Args& args : kProbes) {
        const uint32_t said = answer(program, number, args) & SECCOMP_RET_ACTION_FULL;
        REQUIRE((said == SECCOMP_RET_ALLOW || said == SECCOMP_RET_ERRNO));
      }
    }
  }
}

TEST_CASE("seccomp: no other architecture's calls, nor x32's", "[seccomp]") {
  for (const std::span<const sock_filter> program :
       {std::span<const sock_filter>(kPlugin), std::span<const sock_filter>(kProgram),
        std::span<const sock_filter>(kSupervisor)}) {
    for (uint32_t number = 0; number < kMostCalls; ++number) {
      for (const uint32_t arch : {uint32_t{AUDIT_ARCH_I386}, uint32_t{AUDIT_ARCH_ARM}, kArch ^ 1u, 0u}) {
        REQUIRE(answer(program, number, {}, arch) == SECCOMP_RET_KILL_PROCESS);
      }
      const uint32_t x32 = answer(program, number | kX32);
      REQUIRE((x32 == SECCOMP_RET_KILL_PROCESS || x32 == error(ENOSYS)));
    }
  }
}
