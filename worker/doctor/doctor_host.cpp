// The doctor's look at the kernel, at scheduling and at folders.
#include <fcntl.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "acting/acting_thread.hpp"
#include "doctor/doctor.hpp"
#include "doctor/doctor_probe.hpp"
#include "freeride/base/access.hpp"
#include "freeride/base/fd.hpp"
#include "freeride/base/wait_set.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKernel = "kernel";
constexpr const char* kScheduling = "scheduling";
constexpr const char* kFolders = "folders";
constexpr uint64_t kLittleSpaceBytes = 1ull << 30;
constexpr uint64_t kLittleSharedMemoryBytes = 64ull << 20;  // what container engines give by default

std::string mib(uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

void look_at_futexes(Findings& findings) {
  utsname host{};
  uname(&host);
  Finding f{kKernel, "futex_waitv", Health::kOk, std::string("Linux ") + host.release, ""};
  if (!has_futex_waitv()) {
    f.is(Health::kWarn, f.found + ": no futex_waitv; trainings with an earlier hook are looked at every millisecond",
         "Linux 5.16 or later; in a container, a seccomp profile as in docs/operators/containers.md");
  }
  findings.push_back(f);
}

void look_at_pages(Findings& findings) {
  Finding f{kKernel, "sealed pages", Health::kOk, "memfd_create and seals work", ""};
  const Fd fd(memfd_create("freeride-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid() || ftruncate(fd.get(), 4096) != 0 || fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    f.is(Health::kMissing, std::string("a sealed memory file cannot be made: ") + std::strerror(errno),
         "see sysctl vm.memfd_noexec (0 or 1 is needed)");
  }
  findings.push_back(f);
}

void look_at_clock(Findings& findings) {
  const std::string source = first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  Finding f{kKernel, "clock source", Health::kOk, source.empty() ? "not shown here" : source, ""};
  if (source == "hpet" || source == "acpi_pm" || source == "jiffies" || source == "refined-jiffies" ||
      source == "pit") {
    f.is(Health::kWarn, f.found + ": each look at the clock is a slow system call",
         "see dmesg for why the kernel left tsc, and available_clocksource beside it");
  }
  findings.push_back(f);
}

void look_at_ptrace(Findings& findings) {
  const long long scope = number_in("/proc/sys/kernel/yama/ptrace_scope", 0);
  Finding f{kKernel, "ptrace scope", Health::kOk, "", ""};
  if (scope > 0) {
    f.found = "kernel.yama.ptrace_scope " + std::to_string(scope);
  } else if (geteuid() == 0) {
    f.found = "not restricted; side tasks have uids of their own";
  } else {
    f.is(Health::kWarn,
         "not restricted, and side tasks share uid " + std::to_string(geteuid()) + " with whatever else that user runs",
         "sysctl kernel.yama.ptrace_scope=1, or start the worker as root");
  }
  findings.push_back(f);
}

// The options of /proc that are behind the last " - ", since later ones cover earlier ones.
std::string options_of_proc() {
  std::ifstream in("/proc/self/mountinfo");
  std::string options;
  for (std::string line; std::getline(in, line);) {
    const size_t type = line.find(" - proc ");
    if (type != std::string::npos && line.substr(0, type).find(" /proc ") != std::string::npos)
      options = line.substr(line.rfind(' ') + 1);
  }
  return "," + options + ",";
}

std::string option_in(const std::string& options, const std::string& name) {
  const size_t at = options.find("," + name + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 2;
  return options.substr(begin, options.find(',', begin) - begin);
}

// The worker of the unit has no CAP_SYS_PTRACE, so this look at what is mounted says more than one at a process. It is
// in the groups freeride and root.
void look_at_processes(Findings& findings) {
  Finding f{kKernel, "other users' processes", Health::kOk, "shown in /proc", ""};
  const std::string options = options_of_proc(), hidden = option_in(options, "hidepid"),
                    gid = option_in(options, "gid");
  if (!hidden.empty() && hidden != "0" && hidden != "off") {
    f.found = "/proc is mounted with hidepid=" + hidden + (gid.empty() ? "" : ", gid=" + gid);
    const auto group = operators_group("");
    const bool to_group = gid.empty() || gid == "0" || (group.ok() && *group && gid == std::to_string(**group));
    if (!to_group || hidden == "4" || hidden == "ptraceable") {
      f.is(Health::kWarn, f.found + ": a worker as a service does not see them, and refuses other users' ranks",
           "mount /proc without hidepid, or with hidepid=2 and gid= of the group freeride");
    }
  }
  findings.push_back(f);
}

void look_at_overcommit(Findings& findings) {
  const long long mode = number_in("/proc/sys/vm/overcommit_memory", 0);
  Finding f{kKernel, "overcommit", Health::kOk, "vm.overcommit_memory " + std::to_string(mode), ""};
  if (mode == 2) {
    f.is(Health::kWarn, f.found + ": address space counts as memory, and CUDA reserves far more than it uses",
         "sysctl vm.overcommit_memory=0");
  }
  findings.push_back(f);
}

void look_at_inotify(Findings& findings) {
  const long long instances = number_in("/proc/sys/fs/inotify/max_user_instances", -1);
  const long long watches = number_in("/proc/sys/fs/inotify/max_user_watches", -1);
  Finding f{kKernel, "inotify", Health::kOk,
            std::to_string(instances) + " instances, " + std::to_string(watches) + " watches a user", ""};
  const Fd fd(inotify_init1(IN_CLOEXEC));
  if (!fd.valid() || inotify_add_watch(fd.get(), "/", IN_CREATE) < 0) {
    f.is(Health::kWarn, std::string("no drop folder can be watched: ") + std::strerror(errno) + "; of " + f.found,
         "sysctl fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=65536");
  }
  findings.push_back(f);
}

void look_at_descriptors(Findings& findings) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const bool few = limit.rlim_cur < 1024;
  findings.push_back({kKernel, "open files", few ? Health::kWarn : Health::kOk,
                      std::to_string(limit.rlim_cur) + " a process",
                      few ? "ulimit -n 1024 or more: a worker has some 10 for each side task and trainer" : ""});
}

void look_at_shared_memory(Findings& findings) {
  Finding f{kKernel, "/dev/shm", Health::kOk, "", ""};
  struct statvfs room {};
  if (statvfs("/dev/shm", &room) != 0 || access("/dev/shm", W_OK) != 0) {
    f.is(Health::kWarn, std::string("cannot be used: ") + std::strerror(errno),
         "mount a tmpfs there where training runs, or set FREERIDE_SHM_DIR: its ranks' sent pages lie there");
  } else {
    const uint64_t all = uint64_t{room.f_blocks} * room.f_frsize, free = uint64_t{room.f_bavail} * room.f_frsize;
    f.found = mib(free) + " of " + mib(all) + " free";
    if (free < kLittleSharedMemoryBytes / 4) {
      f.health = Health::kWarn;
      f.advice = "free some where training runs: frameworks and sent pages use it (Docker: --shm-size)";
    }
  }
  findings.push_back(f);
}

// ---- scheduling ----

int become(int policy, int priority) {
  sched_param param{};
  param.sched_priority = priority;
  return sched_setscheduler(0, policy, &param) == 0 ? 0 : errno;
}

void look_at_real_time(Findings& findings) {
  Finding f{kScheduling, "real time", Health::kOk,
            "priority " + std::to_string(kRealTimePriority) + " for the thread that gives the device back", ""};
  if (const int error = try_in_child([] { return become(SCHED_FIFO, kRealTimePriority); }); error != 0) {
    rlimit limit{};
    getrlimit(RLIMIT_RTPRIO, &limit);
    f.is(Health::kWarn,
         std::string("refused (") + std::strerror(error) + "; RLIMIT_RTPRIO " + std::to_string(limit.rlim_cur) +
             "): a busy core may give the device back late",
         "CAP_SYS_NICE, or LimitRTPRIO=" + std::to_string(kRealTimePriority) +
             " in the unit; in a control group of version 1 also cpu.rt_runtime_us (Docker: --cpu-rt-runtime)");
  }
  findings.push_back(f);
}

void look_at_idle_class(const Options& options, Findings& findings) {
  Finding f{kScheduling, "SCHED_IDLE", Health::kOk, "side tasks of CPU devices run when nobody else wants the core",
            ""};
  if (const int error = try_in_child([] { return become(SCHED_IDLE, 0); }); error != 0) {
    f.is(options.cpu_device() ? Health::kMissing : Health::kWarn, std::string("refused: ") + std::strerror(error),
         "the container's seccomp profile must allow sched_setscheduler");
  }
  findings.push_back(f);
}

void look_at_autogroups(Findings& findings) {
  const long long on = number_in("/proc/sys/kernel/sched_autogroup_enabled", -1);
  findings.push_back({kScheduling, "autogroups", Health::kOk,
                      on == 1   ? "on: each side task's session is put last"
                      : on == 0 ? "off"
                                : "not in this kernel",
                      ""});
}

}  // namespace

void look_at_kernel(Findings& findings) {
  look_at_futexes(findings);
  look_at_pages(findings);
  look_at_clock(findings);
  look_at_ptrace(findings);
  look_at_processes(findings);
  look_at_overcommit(findings);
  look_at_inotify(findings);
  look_at_descriptors(findings);
  look_at_shared_memory(findings);
}

void look_at_scheduling(const Options& options, Findings& findings) {
  look_at_real_time(findings);
  look_at_idle_class(options, findings);
  look_at_autogroups(findings);
}

namespace {

std::string mode_of(const struct stat& info) {
  std::ostringstream text;
  text << "uid " << info.st_uid << ", mode " << std::oct << (info.st_mode & 07777);
  return text.str();
}

// A folder that FreeRide has or will make. `secret`: others that may write there could act as FreeRide.
Finding folder(const std::string& name, const fs::path& path) {
  Finding f{kFolders, name, Health::kOk, path.string(), ""};
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    fs::path above = path;
    while (!above.empty() && above != above.root_path() && stat(above.c_str(), &info) != 0) above = above.parent_path();
    if (errno == EACCES || access(above.c_str(), W_OK | X_OK) != 0) {
      f.is(Health::kMissing,
           f.found + ": not there, and this user (uid " + std::to_string(geteuid()) + ") may not make it in " +
               above.string(),
           "make it and give it to this user, or name another (--run-dir, --state-dir)");
    } else {
      f.found += ": not there yet, will be made";
    }
    return f;
  }
  f.found += " (" + mode_of(info) + ")";
  if (!S_ISDIR(info.st_mode)) {
    f.is(Health::kMissing, f.found + " is no folder", "remove it, or name another (--run-dir, --state-dir)");
  } else if (access(path.c_str(), W_OK | X_OK) != 0) {
    f.is(Health::kMissing, f.found + ": this user (uid " + std::to_string(geteuid()) + ") may not write there",
         "give it to this user, or name another (--run-dir, --state-dir)");
  } else if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (info.st_mode & S_ISVTX) == 0) {
    f.is(Health::kWarn, f.found + ": other users may replace what is in it", "chmod go-w " + path.string());
  }
  return f;
}

void look_at_space(const fs::path& path, Finding& f) {
  struct statvfs room {};
  if (f.health != Health::kOk || statvfs(path.c_str(), &room) != 0) return;
  const uint64_t free = uint64_t{room.f_bavail} * room.f_frsize;
  f.found += ", " + mib(free) + " free";
  if (free >= kLittleSpaceBytes) return;
  f.health = Health::kWarn;
  f.advice = "free some space: plugins, logs and results of side tasks go there";
}

// Whoever may connect to these acts as the manager, a worker or a trainer.
void look_at_sockets(const fs::path& run_dir, Findings& findings) {
  Finding f{kFolders, "sockets", Health::kOk, "", ""};
  int seen = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir, error)) {
    const std::string name = entry.path().filename().string();
    struct stat info {};
    if (lstat(entry.path().c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) continue;
    ++seen;
    // Events are for everybody, and trainings of every user come to root's workers.
    const bool everybodys = name == "events.sock" || (name.rfind("worker-", 0) == 0 && info.st_uid == 0);
    if (everybodys || (info.st_mode & 007) == 0) continue;  // a group has one only if the operator named it
    f.health = Health::kWarn;
    f.found += (f.found.empty() ? "" : ", ") + name + " (" + mode_of(info) + ")";
  }
  if (seen == 0) return;
  if (f.health == Health::kOk) {
    f.found = std::to_string(seen) +
              " in the run folder, for their owner and group (events and root's workers: for everybody)";
  } else {
    f.found += ": open to other users";
    f.advice = "chmod o-rwx, and restart who made it";
  }
  findings.push_back(f);
}

}  // namespace

void look_at_folders(const Options& options, Findings& findings) {
  findings.push_back(folder("run folder", options.paths.run_dir));
  look_at_sockets(options.paths.run_dir, findings);
  findings.push_back(folder("state folder", options.paths.state_dir));
  look_at_space(options.paths.state_dir, findings.back());
  findings.push_back(
      folder("drop folder", options.drop_dir.empty() ? options.paths.drop_dir() : fs::path(options.drop_dir)));
}

}  // namespace freeride::worker
