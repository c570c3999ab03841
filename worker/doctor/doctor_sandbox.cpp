// The doctor's look at what sandboxes are made of. What is missing is said by its name; whether all of it works
// together is told by a trial.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "doctor/doctor.hpp"
#include "doctor/doctor_probe.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/log.hpp"
#include "sandbox/cgroup.hpp"
#include "sandbox/sandbox.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArea = "sandbox";
constexpr const char* kOwnName = "doctor";
constexpr uid_t kNobody = 65534;

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

bool is_mount_point(const char* path) {
  struct statx info {};
  return statx(AT_FDCWD, path, 0, 0, &info) != 0 || (info.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) == 0 ||
         (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

void look_at_user_namespaces(Findings& findings, bool& work) {
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
    f.health = Health::kMissing;
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
    } else if (!is_mount_point("/")) {
      f.advice =
          "/ must be a mount point (not a plain chroot): enter it with pivot_root, systemd-nspawn or a container";
    } else {
      f.advice =
          "in a container: --security-opt seccomp=containers/worker-container.seccomp.json (AppArmor: "
          "apparmor=unconfined); in a unit: no "
          "RestrictNamespaces; else see sysctl user.max_*_namespaces";
    }
  }
  findings.push_back(f);
}

// The kernel allows a new one only where no part of those in sight is covered or read-only.
void look_at_proc(Findings& findings) {
  Finding f{kArea, "a /proc of its own", Health::kOk, "can be mounted", ""};
  const int error = try_in_child([] {
    if (const int failed = enter_user_namespace(CLONE_NEWNS | CLONE_NEWPID); failed != 0) return failed;
    return try_in_child([] {
      if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
      return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0 ? 0 : errno;
    });
  });
  if (error != 0) {
    f.is(Health::kMissing, std::string("cannot be mounted, parts of this one are covered: ") + std::strerror(error),
         "in a container: --security-opt systempaths=unconfined; in a unit: no ProtectKernelTunables, "
         "ProtectKernelLogs, ProtectProc");
  }
  findings.push_back(f);
}

void look_at_seccomp(Findings& findings) {
  Finding f{kArea, "seccomp", Health::kOk, "filters can be set", ""};
  const int error = try_in_child([] {
    sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const sock_fprog program{1, &allow};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? 0 : errno;
  });
  if (error != 0) {
    f.is(Health::kMissing, std::string("no filter can be set: ") + std::strerror(error),
         "the kernel needs CONFIG_SECCOMP_FILTER");
  }
  findings.push_back(f);
}

// The first line that a program prints; empty where it does not run.
std::string first_output(const std::string& program, const char* argument) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const int status = try_in_child([&] {
    dup2(write_end.get(), 1);
    execlp(program.c_str(), program.c_str(), argument, nullptr);
    return errno;
  });
  write_end.reset();
  std::array<char, 256> text{};
  const ssize_t got = status == 0 ? read(read_end.get(), text.data(), text.size()) : 0;
  const std::string all(text.data(), got > 0 ? static_cast<size_t>(got) : 0);
  return all.substr(0, all.find('\n'));
}

// The mount under which `folder` of a control group lies: its point, and which group of the hierarchy is shown there.
struct GroupMount {
  fs::path point;
  std::string root;
};

GroupMount mount_of(const fs::path& folder) {
  std::ifstream in("/proc/self/mountinfo");
  GroupMount best;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word, root, point;
    words >> word >> word >> word >> root >> point;
    const bool above = folder.string() == point || folder.string().rfind(point + "/", 0) == 0;
    if (above && point.size() >= best.point.string().size()) best = {point, root};
  }
  return best;
}

// This process's own group, as far as it is in sight.
fs::path own_cpu_group() {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word, root, point, type, source, options;
    words >> word >> word >> word >> root >> point;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    const bool v1 = type == "cgroup" && ("," + options + ",").find(",cpu,") != std::string::npos;
    if (!v1 && !(type == "cgroup2" && fs::exists(point + "/cgroup.controllers") &&
                 first_line(point + "/cgroup.controllers").find("cpu") != std::string::npos))
      continue;
    std::ifstream own("/proc/self/cgroup");
    for (std::string group; std::getline(own, group);) {
      const size_t first = group.find(':'), second = group.find(':', first + 1);
      if (second == std::string::npos) continue;
      const std::string controllers = group.substr(first + 1, second - first - 1);
      if (v1 ? ("," + controllers + ",").find(",cpu,") == std::string::npos : !controllers.empty()) continue;
      std::string path = group.substr(second + 1);
      if (root != "/" && path.rfind(root, 0) == 0) path = path.substr(root.size());
      fs::path folder = point + (path == "/" ? "" : path);
      std::error_code ignored;
      return fs::is_directory(folder, ignored) ? folder : fs::path(point);
    }
  }
  return {};
}

// The groups from `base` up to the top that the kernel weighs like any other, the highest first.
std::vector<fs::path> weighed_groups(const fs::path& base) {
  std::vector<fs::path> found;
  const GroupMount mount = mount_of(base);
  for (fs::path folder = base; folder.string().size() >= mount.point.string().size() && !folder.empty();
       folder = folder.parent_path()) {
    const bool top = folder == mount.point && mount.root == "/";
    // No such file: the group has no weight of its own, or the kernel is older than 5.15 and knows the least weight
    // only.
    if (!top && number_in(folder / "cpu.idle", 1) == 0) found.insert(found.begin(), folder);
    if (folder == folder.parent_path()) break;
  }
  return found;
}

// The kernel weighs groups before it looks at what is in them: a side task below an ordinary group takes half of a core
// that a training elsewhere wants. `base`: where side tasks' groups are made; empty: they stay in this process's own.
void look_at_weights(const fs::path& base, Findings& findings) {
  Finding f{kArea, "share of a core", Health::kOk, "", ""};
  const std::vector<fs::path> weighed = weighed_groups(base.empty() ? own_cpu_group() : base);
  if (weighed.empty()) {
    f.found = "side tasks come last on a core";
  } else {
    f.is(Health::kWarn,
         "side tasks lie below " + weighed.front().string() +
             ", an ordinary group: a training outside of it shares a busy core with them evenly",
         "start worker and training in one group, or the worker below an idle one (docs/operators/containers.md: "
         "freeride.slice, prepare-cgroups.sh)");
  }
  findings.push_back(f);
}

// A facility of somebody's that has no controller is told apart from one that this user may not write.
void look_at_cgroups(const Options& options, Findings& findings) {
  const Cgroups cgroups(kOwnName);
  Finding f{kArea, "control groups", Health::kOk, "", ""};
  if (cgroups.version() == 0) {
    f.is(Health::kWarn, "side tasks get rlimits only: " + cgroups.why_not(),
         "start the worker as root, in a unit with Delegate=yes (containers/systemd), or in a container with "
         "prepare-cgroups.sh and its compose "
         "file (docs/operators/containers.md)");
    findings.push_back(f);
  } else {
    std::string there, missing;
    for (const char* controller : {"memory", "pids", "cpu", "cpuset"}) {
      std::string& list = cgroups.has(controller) ? there : missing;
      list += (list.empty() ? "" : ", ") + std::string(controller);
    }
    f.found = "version " + std::to_string(cgroups.version()) + ": " + there;
    if (!missing.empty()) {
      f.is(Health::kWarn,
           f.found + "; not " + missing + (cgroups.why_not().empty() ? "" : " (" + cgroups.why_not() + ")"),
           "delegate those as well (systemd: Delegate=yes)");
    }
    findings.push_back(f);
  }
  if (options.cpu_device()) look_at_weights(cgroups.base("cpu"), findings);
}

}  // namespace

void look_at_sandbox(const Options& options, Findings& findings) {
  SandboxOptions sandbox = options.sandbox;
  if (sandbox.name == "none") {
    findings.push_back({kArea, "sandbox", Health::kWarn, "none: side tasks are not isolated from this host",
                        "for anything but development: --sandbox bubblewrap"});
    return;
  }
  const size_t before = findings.size();
  sandbox.device = kOwnName;  // a running worker's control groups are none of the doctor's
  if (auto runner = find_runner(sandbox.runner); runner.ok()) {
    sandbox.runner = *runner;
  } else {
    findings.push_back({kArea, "freeride-runner", Health::kMissing, runner.error().message, runner.error().hint});
  }
  auto made = make_sandbox(sandbox);
  if (made.ok()) {
    const std::string version = first_output(find_bwrap(sandbox.bwrap), "--version");
    findings.push_back({kArea, "bubblewrap", Health::kOk, version.empty() ? "does not tell its version" : version, ""});
  } else {
    findings.push_back({kArea, "bubblewrap", Health::kMissing, made.error().message, made.error().hint});
  }
  bool namespaces = false;
  look_at_user_namespaces(findings, namespaces);
  if (namespaces) look_at_proc(findings);
  look_at_seccomp(findings);
  look_at_cgroups(options, findings);
  const bool parts = std::none_of(findings.begin() + static_cast<ptrdiff_t>(before), findings.end(),
                                  [](const Finding& f) { return f.health == Health::kMissing; });
  if (!parts) return;
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);  // what it would tell the log is told here
  const Status tried = (*made)->check();
  spdlog::set_level(level);
  if (tried.ok()) {
    findings.push_back({kArea, "a trial", Health::kOk, "a sandbox with freeride-runner in it starts", ""});
  } else {
    findings.push_back({kArea, "a trial", Health::kMissing, tried.error().message, tried.error().hint});
  }
}

}  // namespace freeride::worker
