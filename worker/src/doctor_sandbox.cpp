// The doctor's look at what sandboxes are made of. What is missing is said by its name; whether all of it works
// together is told by a trial.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "doctor.hpp"
#include "doctor_probe.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArea = "sandbox";
constexpr uid_t kNobody = 65534;

bool in_container() {
  std::error_code ignored;
  return fs::exists("/.dockerenv", ignored) || fs::exists("/run/.containerenv", ignored);
}

// As a side task would: with no privilege.
int drop_uid() {
  if (geteuid() != 0) return 0;
  constexpr uid_t uid = kNobody;
  if (syscall(SYS_setresgid, uid, uid, uid) != 0 || syscall(SYS_setresuid, uid, uid, uid) != 0) {
    return errno == EINVAL
               ? 0
               : errno;  // root of a user namespace that has nobody else: no more privileged outside than anybody
  }
  // Back to 1, which a change of uid clears: the maps of a user namespace are written through /proc/self.
  return prctl(PR_SET_DUMPABLE, 1) == 0 ? 0 : errno;
}

bool write_text(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return done;
}

int enter_user_namespace(int more) {
  if (const int error = drop_uid(); error != 0) return error;
  const std::string uid = std::to_string(geteuid()), gid = std::to_string(getegid());
  if (unshare(CLONE_NEWUSER | more) != 0) return errno;
  // AppArmor lets the namespace be made and then takes its rights: so use one.
  if (!write_text("/proc/self/setgroups", "deny") || !write_text("/proc/self/gid_map", "0 " + gid + " 1") ||
      !write_text("/proc/self/uid_map", "0 " + uid + " 1")) {
    return errno;
  }
  return 0;
}

void look_at_user_namespaces(Health if_not, Findings& findings, bool& work) {
  Finding f{kArea, "user namespaces", Health::kOk, "an unprivileged user can make them", ""};
  const int error = try_in_child([] {
    if (const int failed =
            enter_user_namespace(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS);
        failed != 0)
      return failed;
    return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 ? 0 : errno;
  });
  work = error == 0;
  if (!work) {
    f.health = if_not;
    f.found = std::string("an unprivileged user cannot make them: ") + std::strerror(error);
    if (number_in("/proc/sys/kernel/unprivileged_userns_clone", 1) == 0) {
      f.found += " (kernel.unprivileged_userns_clone is 0)";
      f.advice = "sysctl kernel.unprivileged_userns_clone=1";
    } else if (number_in("/proc/sys/user/max_user_namespaces", 1) == 0) {
      f.found += " (user.max_user_namespaces is 0)";
      f.advice = "sysctl user.max_user_namespaces=10000";
    } else if (number_in("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) == 1) {
      f.found += " (kernel.apparmor_restrict_unprivileged_userns is 1)";
      f.advice =
          "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with 'userns,' for bwrap";
    } else if (in_container()) {
      f.advice =
          "start the container with --security-opt seccomp=containers/worker-container.seccomp.json (AppArmor: "
          "apparmor=unconfined)";
    } else {
      f.advice = "see user.max_*_namespaces (sysctl), the unit's RestrictNamespaces, and the kernel's CONFIG_USER_NS";
    }
  }
  findings.push_back(f);
}

// The kernel allows a new one only where no part of those in sight is covered or read-only.
void look_at_proc(Health if_not, Findings& findings) {
  Finding f{kArea, "a /proc of its own", Health::kOk, "can be mounted", ""};
  const int error = try_in_child([] {
    if (const int failed = enter_user_namespace(CLONE_NEWNS | CLONE_NEWPID); failed != 0) return failed;
    return try_in_child([] {
      if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
      return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0 ? 0 : errno;
    });
  });
  if (error != 0) {
    f.health = if_not;
    f.found = std::string("cannot be mounted, parts of this one are covered: ") + std::strerror(error);
    f.advice = in_container() ? "start the container with --security-opt systempaths=unconfined"
                              : "in a container: systempaths=unconfined; in a unit: no ProtectKernelTunables, "
                                "ProtectKernelLogs, ProtectProc";
  }
  findings.push_back(f);
}

void look_at_seccomp(Health if_not, Findings& findings) {
  Finding f{kArea, "seccomp", Health::kOk, "filters can be set", ""};
  const int error = try_in_child([] {
    sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const sock_fprog program{1, &allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 0 : errno;
  });
  if (error != 0) {
    f.health = if_not;
    f.found = std::string("no filter can be set: ") + std::strerror(error);
    f.advice = "the kernel needs CONFIG_SECCOMP_FILTER";
  }
  findings.push_back(f);
}

}  // namespace

void look_at_sandbox(const Options& options, Findings& findings) {
  (void)options;
  const Health if_not = Health::kMissing;
  bool namespaces = false;
  look_at_user_namespaces(if_not, findings, namespaces);
  if (namespaces) look_at_proc(if_not, findings);
  look_at_seccomp(if_not, findings);
}

}  // namespace freeride::worker
