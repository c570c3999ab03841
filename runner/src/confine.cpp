#include "confine.hpp"

#include <linux/capability.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "freeride/seccomp_filters.hpp"

namespace freeride::runner {
namespace {

// Descriptors: enough for any side task, few enough that the kernel's tables stay small.
constexpr rlim_t kMostDescriptors = 1024;

Status no_new_privileges() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno_error("cannot give up new privileges", errno);
  return {};
}

template <size_t N>
int install(const sock_filter (&filter)[N]) {
  sock_fprog program{};
  program.len = static_cast<unsigned short>(N);
  program.filter = const_cast<sock_filter*>(filter);
  return static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
}

void limit(int resource, rlim_t most) {
  rlimit value{};
  getrlimit(static_cast<__rlimit_resource>(resource), &value);
  value.rlim_max = std::min(value.rlim_max, most);
  value.rlim_cur = value.rlim_max;
  setrlimit(static_cast<__rlimit_resource>(resource), &value);
}

}  // namespace

Status shield_supervisor() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> caps{};
  if (syscall(SYS_capget, &header, caps.data()) != 0) return errno_error("cannot read the capabilities", errno);
  if (caps[0].effective != 0 || caps[1].effective != 0 || caps[0].permitted != 0 || caps[1].permitted != 0) {
    return Error{Code::kPermission, "this process has capabilities, so it is in no sandbox",
                 "--confined is for freeride-worker's sandbox only"};
  }
  // Same user as the plugin's process: without this, that could trace us, and read our descriptors out of /proc.
  if (prctl(PR_SET_DUMPABLE, 0) != 0) return errno_error("cannot shield the supervisor", errno);
  return no_new_privileges();
}

Status confine_supervisor() {
  if (install(seccomp::kSupervisor) != 0)
    return errno_error("cannot install the supervisor's system call filter", errno);
  return {};
}

Status confine_plugin(const Confinement& confinement) {
  prctl(PR_SET_DUMPABLE, 1);  // the shield of the supervisor, inherited
  limit(RLIMIT_NOFILE, kMostDescriptors);
  limit(RLIMIT_MSGQUEUE, 0);
  limit(RLIMIT_NICE, 0);  // so SCHED_IDLE and a nice value are for good
  limit(RLIMIT_RTPRIO, 0);
  if (confinement.pids > 0) limit(RLIMIT_NPROC, static_cast<rlim_t>(confinement.pids));
  if (auto s = no_new_privileges(); !s.ok()) return s;
  if ((confinement.program ? install(seccomp::kProgram) : install(seccomp::kPlugin)) != 0)
    return errno_error("cannot install the system call filter", errno, "the kernel needs CONFIG_SECCOMP_FILTER");
  return {};
}

Status try_sandbox() {
  if (auto s = shield_supervisor(); !s.ok()) return s;
  if (mkdir("/freeride-trial", 0700) == 0) return Error{Code::kPermission, "the sandbox's root can be written", ""};
  if (mkdir("freeride-trial", 0700) != 0) return errno_error("the sandbox's scratch folder cannot be written", errno);
  if (getpid() != 1) return Error{Code::kInternal, "the sandbox has no process namespace of its own", ""};
  return confine_plugin({.on = true, .program = false, .pids = 0, .saved = {}, .working_dir = {}});
}

}  // namespace freeride::runner
