// The sandbox made by bubblewrap (bwrap). docs/operators/sandbox.md says what it protects from.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "freeride/base/copy_tree.hpp"
#include "freeride/base/log.hpp"
#include "freeride/base/paths.hpp"
#include "sandbox/cgroup.hpp"
#include "sandbox/core_files.hpp"
#include "sandbox/hidden_path.hpp"
#include "sandbox/sandbox_child.hpp"
#include "sandbox/task_uid.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLeastMemoryBytes = 16ll << 20;  // less does not even load a plugin
constexpr int64_t kSmallTmpBytes = 16ll << 20;
constexpr int64_t kSharedMemoryBytes = 64ll << 20;  // of /dev/shm
constexpr uid_t kNobody = 65534;
constexpr int kTrialMs = 20'000;
// Names inside.
constexpr const char* kRunner = "/freeride/freeride-runner";
constexpr const char* kPlugins = "/freeride/plugin/";
constexpr const char* kSaved = "/freeride/saved";
constexpr const char* kScratch = "/scratch";
constexpr const char* kRealDriver = "/freeride/libcuda-real.so.1";
constexpr const char* kLeasePage = "/freeride/lease-page";
constexpr const char* kShimPage = "/freeride/shim-page";
constexpr const char* kUser = "freeride";
// The system's libraries, and what the loader finds them by. No programs.
constexpr std::array<const char*, 9> kLibraries{"/usr/lib", "/usr/lib64", "/usr/lib32", "/usr/libx32", "/usr/local/lib",
                                                "/lib",     "/lib64",     "/lib32",     "/libx32"};
constexpr std::array<const char*, 5> kLoaderFiles{"/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime",
                                                  "/usr/share/zoneinfo", "/usr/local/cuda/lib64"};
// What a program may execute, and the files that system programs have with them.
constexpr std::array<const char*, 10> kPrograms{"/usr/bin",   "/usr/sbin",       "/usr/local/bin", "/usr/local/sbin",
                                                "/bin",       "/sbin",           "/usr/libexec",   "/usr/include",
                                                "/usr/share", "/usr/local/share"};
// JAX and CuPy look for CUDA's compiler, its headers and device libraries in the toolkit.
constexpr std::array<const char*, 11> kProgramFiles{"/etc/ssl",
                                                    "/etc/ca-certificates",
                                                    "/etc/python3",
                                                    "/etc/perl",
                                                    "/etc/fonts",
                                                    "/etc/magic",
                                                    "/etc/mime.types",
                                                    "/etc/terminfo",
                                                    "/usr/local/cuda/bin",
                                                    "/usr/local/cuda/nvvm",
                                                    "/usr/local/cuda/include"};
constexpr const char* kProgramPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/cuda/bin";
// What a task inherits of the worker's environment.
constexpr std::array<const char*, 12> kPassed{"OMP_",  "GOMP_",  "KMP_",  "OPENBLAS_",
                                              "MKL_",  "LANG",   "LC_",   "TZ",
                                              "ASAN_", "UBSAN_", "TSAN_", "CUDA_DEVICE_MAX_CONNECTIONS"};

std::string mib(int64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

bool has_capability(int capability) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> caps{};
  if (syscall(SYS_capget, &header, caps.data()) != 0) return false;
  return (caps[static_cast<size_t>(capability) / 32].effective >> (capability % 32) & 1) != 0;
}

std::string last_line(const std::string& text, const std::string& with) {
  std::istringstream in(text);
  std::string found;
  for (std::string line; std::getline(in, line);) {
    if (line.find(with) != std::string::npos) found = line;
  }
  return found;
}

/// What is written down of a sandbox when it is made.
struct Facts {
  std::string text;
  int64_t memory_bytes = 0, scratch_bytes = 0, pids = 0;
  bool program = false;
  std::string saved;                 ///< folder on the host
  ino_t saved_id = 0;                ///< of that folder when the task started
  std::vector<std::string> visible;  ///< paths of the host that are there inside, and the sandbox's own
};

ino_t id_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

class BubblewrapHold final : public Hold {
 public:
  BubblewrapHold(Facts facts, std::unique_ptr<TaskCgroup> cgroup)
      : facts_(std::move(facts)), cgroup_(std::move(cgroup)) {}

  std::string describe() const override { return facts_.text; }

  void explain(policy::Verdict& verdict, const std::string& log_tail) const override {
    using policy::VerdictKind;
    if (verdict.kind == VerdictKind::kRejected && verdict.cause == policy::Cause::kRefused) {
      if (const std::string line = last_line(log_tail, "error the task could not "); !line.empty())
        verdict.message = line.substr(line.find("the task could not "));
      return;
    }
    if (verdict.kind == VerdictKind::kLost && verdict.transition.empty()) {
      if (const std::string line = last_line(log_tail, "bwrap: "); !line.empty()) {
        policy::Verdict before;
        before.kind = VerdictKind::kLost;
        before.cause = policy::Cause::kSandbox;
        before.message = "its sandbox could not be made: " + line;
        note_cause(verdict, std::move(before));
      }
    }
    const bool died = verdict.kind == VerdictKind::kCrashed || verdict.kind == VerdictKind::kLost;
    if (died && cgroup_ != nullptr && cgroup_->oom_kills() > 0) {
      policy::Verdict before;
      before.kind = VerdictKind::kOutOfMemory;
      before.cause = policy::Cause::kMemoryLimit;
      before.message = "killed by the kernel at its memory limit";
      if (const int64_t peak = cgroup_->peak_bytes(); peak > 0) before.message += ", having held " + mib(peak);
      before.limit = "memory " + mib(facts_.memory_bytes);
      note_cause(verdict, std::move(before));
      return;
    }
    if (verdict.kind == VerdictKind::kFailed || verdict.kind == VerdictKind::kRejected) {
      std::string path = hidden_path(verdict.message, facts_.visible);
      // A program says it in its log, in these words of the C library.
      if (path.empty() && facts_.program && verdict.cause == policy::Cause::kExit)
        path = hidden_path(last_line(log_tail, "No such file or directory"), facts_.visible);
      if (!path.empty()) {
        verdict.message += "; its sandbox does not show " + path + " of the host: load it with --read " + path +
                           ", or --write; the worker's --data says below which folders";
      }
    }
    if (!verdict.limit.empty()) return;
    const bool failed = verdict.kind == VerdictKind::kFailed;
    if (verdict.kind == VerdictKind::kOutOfMemory) {
      verdict.limit = "memory " + mib(facts_.memory_bytes);
    } else if ((died || failed || verdict.kind == VerdictKind::kRejected) && cgroup_ != nullptr &&
               cgroup_->pids_refused() > 0) {
      verdict.limit = "processes and threads " + std::to_string(facts_.pids);
    } else if ((died || failed) && scratch_full_) {
      verdict.limit = "scratch folder " + mib(facts_.scratch_bytes);
    }
  }

  Status end_scratch(int scratch_fd, bool keep) override {
    if (scratch_fd < 0) return {};
    struct statvfs room {};
    scratch_full_ = fstatvfs(scratch_fd, &room) == 0 && (room.f_bavail == 0 || room.f_favail == 0);
    if (!keep) return {};
    const fs::path saved = facts_.saved, fresh = facts_.saved + ".new", old = facts_.saved + ".old";
    std::error_code error;
    fs::remove_all(fresh, error);
    fs::remove_all(old, error);
    if (!fs::create_directories(fresh, error)) return errno_error("cannot make " + fresh.string(), error.value());
    fs::permissions(fresh, fs::perms(0755), error);
    const Fd to(open(fresh.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!to.valid()) return errno_error("cannot open " + fresh.string(), errno);
    const CopyLimits limits{.bytes = facts_.scratch_bytes};
    auto copied = copy_tree(scratch_fd, to.get(), limits);
    if (!copied.ok()) {
      fs::remove_all(fresh, error);
      return copied.error();
    }
    if (copied->skipped > 0)
      spdlog::warn("{} things in a task's scratch folder were not kept (links, and what is more than {} entries)",
                   copied->skipped, limits.entries);
    // A task that was replaced: what the other one has left meanwhile stays, where this one has nothing of that name.
    if (const Fd there(open(saved.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        there.valid() && id_of(there.get()) != facts_.saved_id) {
      if (auto merged = copy_tree(there.get(), to.get(), limits); !merged.ok()) return merged.error();
    }
    fs::rename(saved, old, error);
    fs::rename(fresh, saved, error);
    if (error) return errno_error("cannot rename " + fresh.string(), error.value());
    fs::remove_all(old, error);
    return {};
  }

 private:
  Facts facts_;
  std::unique_ptr<TaskCgroup> cgroup_;
  bool scratch_full_ = false;
};

class Bubblewrap final : public Sandbox {
 public:
  Bubblewrap(SandboxOptions options, std::string bwrap)
      : options_(std::move(options)),
        bwrap_(std::move(bwrap)),
        cgroups_(options_.device),
        root_(geteuid() == 0),
        can_stage_(root_ && has_capability(CAP_SYS_ADMIN)) {}

  const char* name() const override { return "bubblewrap"; }
  Status check() override;

  TaskIdentity identity(uint64_t task) override;
  void forget(uint64_t task) override { uids_.erase(task); }
  bool takes_rights() const override { return can_stage_; }
  InsidePaths inside(const std::string& plugin, const std::string&) const override {
    return {kPlugins + fs::path(plugin).filename().string(), kScratch};
  }

  Result<Child> start(const SandboxRequest& request) override { return start(request, {"supervise"}, true); }

 private:
  Result<Child> start(const SandboxRequest& request, const std::vector<std::string>& verb, bool task);
  Status check_limits(const SandboxRequest& request) const;
  Status add_granted(const GrantedFile& file, ChildPlan& plan, std::vector<Fd>& kept) const;
  std::vector<std::string> environment(const SandboxRequest& request) const;
  std::string describe(const TaskCgroup* cgroup, const Facts& facts, uid_t uid, bool network) const;

  const SandboxOptions options_;
  const std::string bwrap_;
  Cgroups cgroups_;
  const bool root_, can_stage_;
  std::map<uint64_t, TaskUid> uids_;  ///< by task
  Error no_uid_;                      ///< why a task has none
};

TaskIdentity Bubblewrap::identity(uint64_t task) {
  if (!root_) return {geteuid(), getegid()};
  auto it = uids_.find(task);
  if (it == uids_.end()) {
    auto taken = TaskUid::take(options_.uid_folder, options_.first_uid);
    if (!taken.ok()) {
      no_uid_ = taken.error();
      return {kNobody, kNobody};  // start() says so
    }
    it = uids_.emplace(task, std::move(*taken)).first;
  }
  return {it->second.get(), it->second.get()};
}

Status Bubblewrap::check_limits(const SandboxRequest& request) const {
  if (request.memory_limit_bytes > 0 && request.memory_limit_bytes < kLeastMemoryBytes) {
    return Error{Code::kInvalidArgument,
                 "a memory limit of " + std::to_string(request.memory_limit_bytes) + " bytes lets nothing run",
                 "give it " + mib(kLeastMemoryBytes) + " or more (load --memory)"};
  }
  return {};
}

// A file of the sandbox's own, read by bubblewrap from the descriptor.
Result<Fd> file_of(const std::string& text) {
  Fd fd(memfd_create("freeride-file", MFD_CLOEXEC));
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      lseek(fd.get(), 0, SEEK_SET) != 0)
    return errno_error("cannot make a file for the sandbox", errno);
  return fd;
}

std::vector<int> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

std::vector<std::string> Bubblewrap::environment(const SandboxRequest& request) const {
  std::map<std::string, std::string> all{
      {"HOME", kScratch},
      {"TMPDIR", kScratch},
      {"PATH", "/nonexistent"},
      {"USER", kUser},
      {"LOGNAME", kUser},
      // Open MPI starts a daemon for a process that calls MPI_Init by itself, and fails without ssh or processes.
      {"OMPI_MCA_ess_singleton_isolated", "1"}};
  if (request.program) all["PATH"] = kProgramPath;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const bool passed =
        std::any_of(kPassed.begin(), kPassed.end(), [&](const char* prefix) { return text.rfind(prefix, 0) == 0; });
    if (const size_t equals = text.find('='); passed && equals != std::string::npos)
      all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  std::string libraries;
  for (const std::string& folder : options_.library_dirs) libraries += (libraries.empty() ? "" : ":") + folder;
  if (!libraries.empty()) all["LD_LIBRARY_PATH"] = libraries;
  for (const auto& [key, value] : request.grants.own_env) all[key] = value;
  for (const auto& [key, value] : request.grants.env) all[key] = value;
  if (!request.grants.shim.library.empty()) {
    all["FREERIDE_SHIM_REAL"] = kRealDriver;
    all["FREERIDE_SHIM_DRIVER"] = request.grants.shim.drivers.front();
    all["FREERIDE_LEASE_PAGE"] = kLeasePage;
    all["FREERIDE_SHIM_PAGE"] = kShimPage;
  }
  if (!libraries.empty() && request.grants.env.count("LD_LIBRARY_PATH") != 0) all["LD_LIBRARY_PATH"] += ":" + libraries;
  std::vector<std::string> list;
  for (const auto& [key, value] : all) list.push_back(std::string(key).append("=").append(value));
  return list;
}

std::string Bubblewrap::describe(const TaskCgroup* cgroup, const Facts& facts, uid_t uid, bool network) const {
  std::string text = "bubblewrap";
  text += " (uid " + std::to_string(uid) + (root_ ? "" : ", the worker's own");
  text += "; ";
  std::string rlimits;
  if (cgroup == nullptr || !cgroup->limits_memory()) {
    if (facts.memory_bytes > 0) rlimits += "data " + mib(facts.memory_bytes);
  }
  if (cgroup == nullptr || !cgroup->limits_pids())
    rlimits += (rlimits.empty() ? "pids " : ", pids ") + std::to_string(facts.pids);
  if (cgroup != nullptr) text += cgroup->text();
  if (!rlimits.empty()) text += (cgroup != nullptr ? "; rlimits: " : "rlimits: ") + rlimits;
  if (cgroup == nullptr) text += " (no cgroup: " + cgroups_.why_not() + ")";
  text += "; scratch " + mib(facts.scratch_bytes) + (network ? "; the host's network)" : "; no network)");
  return text;
}

// `from` is `to`, and every other number itself but `to`, which nobody has.
std::string map_of(uint32_t from, uint32_t to) {
  std::string text = std::to_string(from) + " " + std::to_string(to) + " 1\n";
  uint64_t begin = 0;
  for (const uint64_t left_out : {std::min(from, to), std::max(from, to), UINT32_MAX}) {
    if (left_out > begin) {
      const std::string first = std::to_string(begin);
      text += first + " " + first + " " + std::to_string(left_out - begin) + "\n";
    }
    begin = left_out + 1;
  }
  return text;
}

// What is granted, as it is now: a link that is there leads nowhere but below the folder that the operator has opened.
Result<Fd> open_below(const GrantedFile& file) {
  const Fd folder(open(file.folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return errno_error("the task could not reach " + file.folder, errno);
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  Fd opened(static_cast<int>(syscall(SYS_openat2, folder.get(), file.path.c_str(), &how, sizeof(how))));
  if (!opened.valid()) return errno_error("the task could not open " + file.source, errno);
  return opened;
}

// Under root the child opens it as its user; else this process's user is the submitter, and bubblewrap has no more
// rights than it.
Status Bubblewrap::add_granted(const GrantedFile& file, ChildPlan& plan, std::vector<Fd>& kept) const {
  const auto add = [&](std::initializer_list<std::string> words) { plan.argv.insert(plan.argv.end(), words); };
  std::error_code ignored;
  if (file.empty && fs::is_regular_file(file.source, ignored)) {
    auto made = file_of("");
    if (!made.ok()) return made.error();
    add({"--bind-data", std::to_string(made->get()), file.target});
    plan.keep_fds.push_back(made->get());
    kept.push_back(std::move(*made));
    return {};
  }
  if (file.empty) {
    add({"--size", std::to_string(options_.scratch_bytes), "--perms", "0700", "--tmpfs", file.target});
    return {};
  }
  std::string source;
  if (can_stage_) {
    source = std::string(kStageRoot) + "/data" + std::to_string(plan.grants.size());
    plan.grants.push_back({file.folder, file.path, file.source, source, file.write});
  } else {
    auto opened = open_below(file);
    if (!opened.ok()) return opened.error();
    source = "/proc/self/fd/" + std::to_string(opened->get());
    plan.keep_fds.push_back(opened->get());
    kept.push_back(std::move(*opened));
  }
  add({file.write ? "--bind" : "--ro-bind", source, file.target});
  return {};
}

Result<Child> Bubblewrap::start(const SandboxRequest& request, const std::vector<std::string>& verb, bool task) {
  // bubblewrap ends with the thread that has started it, not with its process (--die-with-parent).
  if (gettid() != getpid()) return Error{Code::kInternal, "a sandbox is started by the main thread only", ""};
  if (auto s = check_limits(request); !s.ok()) return s.error();
  Facts facts;
  facts.memory_bytes = request.memory_limit_bytes;
  facts.pids = options_.pids;
  facts.program = request.program;
  facts.scratch_bytes = options_.scratch_bytes;
  if (facts.memory_bytes > 0) facts.scratch_bytes = std::min(facts.scratch_bytes, facts.memory_bytes);
  facts.saved = request.scratch;
  if (const Fd saved(open(request.scratch.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)); saved.valid())
    facts.saved_id = id_of(saved.get());

  std::unique_ptr<TaskCgroup> cgroup;
  if (cgroups_.version() != 0) {
    Ceilings ceilings;
    ceilings.memory_bytes = request.memory_limit_bytes;
    ceilings.pids = options_.pids;
    ceilings.cpus = options_.cpus;
    ceilings.cores = request.cores;
    ceilings.priority = request.priority;
    auto made = cgroups_.make(ceilings);
    if (!made.ok()) return made.error();
    cgroup = std::move(*made);
  }
  const TaskIdentity identity = this->identity(request.task);
  if (root_ && uids_.count(request.task) == 0) {
    return no_uid_;
  }

  ChildPlan plan;
  plan.output_fd = request.output_fd;
  plan.keep_fds = request.keep_fds;
  if (cgroup != nullptr) plan.join_fds = cgroup->join_fds();
  plan.cores = request.cores;
  plan.priority = request.priority;
  plan.killed_first = true;
  if (request.priority == CpuPriority::kIdle)
    limit_memory(plan, request.memory_limit_bytes);  // a GPU's driver reserves far more than it uses
  plan.uid = root_ ? identity.uid : 0;
  plan.working_dir = "/";
  plan.program = bwrap_;
  plan.own_env = true;
  plan.env = environment(request);

  const std::string number = std::to_string(identity.uid), group = std::to_string(identity.gid);
  plan.rights = request.grants.data_user;
  plan.map = map_of(plan.rights.uid, identity.uid);
  plan.group_map = map_of(plan.rights.gid, identity.gid);
  plan.least_map = std::to_string(plan.rights.uid) + " " + number + " 1";
  plan.least_group_map = std::to_string(plan.rights.gid) + " " + group + " 1";

  auto& argv = plan.argv;
  const auto add = [&](std::initializer_list<std::string> words) { argv.insert(argv.end(), words); };
  const auto bind = [&](const char* option, const std::string& path, const std::string& target) {
    std::error_code ignored;
    std::string source = path;
    if (can_stage_) {
      source = std::string(kStageRoot) + "/" + std::to_string(plan.stages.size());
      plan.stages.push_back({path, source, fs::is_directory(path, ignored)});
    }
    add({option, source, target});
  };
  add({"bwrap", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"});
  if (!request.grants.network) add({"--unshare-net"});
  add({"--die-with-parent", "--as-pid-1", "--hostname", "sandbox"});
  std::vector<const char*> shown{kLibraries.begin(), kLibraries.end()};
  if (request.program) shown.insert(shown.end(), kPrograms.begin(), kPrograms.end());
  for (const char* path : shown) {
    struct stat info {};
    if (lstat(path, &info) != 0) continue;
    std::error_code error;
    if (S_ISLNK(info.st_mode)) {
      add({"--symlink", fs::read_symlink(path, error).string(), path});
    } else {
      add({"--ro-bind", path, path});
    }
  }
  for (const char* path : kLoaderFiles) add({"--ro-bind-try", path, path});
  if (request.program) {
    for (const char* path : kProgramFiles) add({"--ro-bind-try", path, path});
  }
  std::vector<Fd> kept;
  const auto make_file = [&](const std::string& path, const std::string& text) -> Status {
    auto made = file_of(text);
    if (!made.ok()) return made.error();
    add({"--perms", "0444", "--file", std::to_string(made->get()), path});
    plan.keep_fds.push_back(made->get());
    kept.push_back(std::move(*made));
    return {};
  };
  // Libraries ask for the name and the home of the user number that they run as, and fail where it has none.
  const std::string user = std::string(kUser) + ":x:";
  if (auto s = make_file("/etc/passwd", user + number + ":" + group + "::" + kScratch + ":/usr/sbin/nologin\n");
      !s.ok())
    return s.error();
  if (auto s = make_file("/etc/group", user + group + ":\n"); !s.ok()) return s.error();
  if (request.grants.network) {
    for (const char* path : {"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl/certs"})
      add({"--ro-bind-try", path, path});
  }
  // /tmp is the scratch folder, unless something that a task is to see lies there.
  const auto in_tmp = [](const std::string& path) { return path == "/tmp" || path.rfind("/tmp/", 0) == 0; };
  bool tmp_taken = in_tmp(request.grants.working_dir);
  for (const auto* folders : {&options_.library_dirs, &request.grants.files, &request.grants.folders}) {
    tmp_taken = tmp_taken || std::any_of(folders->begin(), folders->end(), in_tmp);
  }
  for (const GrantedFile& file : request.grants.data) tmp_taken = tmp_taken || in_tmp(file.target);
  if (tmp_taken) add({"--size", std::to_string(kSmallTmpBytes), "--perms", "1777", "--tmpfs", "/tmp"});
  // The submitter's first: whatever of ours is at the same place covers it.
  for (const GrantedFile& file : request.grants.data) {
    if (auto s = add_granted(file, plan, kept); !s.ok()) return s.error();
  }
  for (const std::string& folder : options_.library_dirs) bind("--ro-bind", folder, folder);
  add({"--proc", "/proc"});
  // CUDA names its threads through /proc/self/task/N/comm, and does without a GPU when it cannot. Else nothing there is
  // an unprivileged user's to write that matters.
  if (request.grants.devices.empty()) add({"--remount-ro", "/proc"});
  add({"--dev", "/dev"});
  add({"--size", std::to_string(kSharedMemoryBytes), "--perms", "1777", "--tmpfs", "/dev/shm"});
  add({"--size", std::to_string(facts.scratch_bytes), "--perms", "0700", "--tmpfs", kScratch});
  if (!tmp_taken) add({"--symlink", kScratch, "/tmp"});
  bind("--ro-bind", options_.runner, kRunner);
  if (!request.plugin.empty()) bind("--ro-bind", request.plugin, inside(request.plugin, "").plugin);
  // What an earlier run has left. Where there is nothing, a first run and a profile look alike from inside.
  std::error_code unreadable;
  const bool saved = task && !fs::is_empty(request.scratch, unreadable) && !unreadable;
  if (saved) bind("--ro-bind", request.scratch, kSaved);
  for (const std::string& path : request.grants.files) bind("--ro-bind", path, path);
  for (const std::string& path : request.grants.folders) bind("--bind", path, path);
  if (const ShimGrant& shim = request.grants.shim; !shim.library.empty()) {
    bind("--ro-bind", shim.drivers.front(), kRealDriver);  // before its own place is taken
    for (const std::string& path : shim.drivers) bind("--ro-bind", shim.library, path);
    bind("--ro-bind", shim.lease_page, kLeasePage);
    bind("--bind", shim.shim_page, kShimPage);
  }
  for (const std::string& path : request.grants.devices) bind("--dev-bind", path, path);
  // Libraries size themselves by what they find here: by the host's, or not at all, where it is not the task's.
  const bool sys_granted = std::any_of(request.grants.data.begin(), request.grants.data.end(),
                                       [](const GrantedFile& file) { return file.target.rfind("/sys", 0) == 0; });
  if (!sys_granted) {
    const CoreFiles cores = core_files(request.cores.empty() ? own_cores() : request.cores);
    for (const fs::path& path : cores.shown) add({"--ro-bind", path.string(), path.string()});
    for (const auto& [path, text] : cores.made) {
      if (auto s = make_file(path.string(), text); !s.ok()) return s.error();
    }
    const auto groups = cgroup == nullptr ? std::map<std::string, fs::path>() : cgroup->shown_at();
    for (const auto& [path, folder] : groups) {
      bind("--ro-bind", folder.string(), path);
      if (fs::path(path).filename() != "cpu,cpuacct") continue;
      for (const char* name : {"cpu", "cpuacct"})
        add({"--symlink", "cpu,cpuacct", std::string("/sys/fs/cgroup/") + name});
    }
    add({"--dir", "/sys/class/net"});  // UCX, below MPI, complains where there is none
  }
  add({"--remount-ro", "/dev", "--remount-ro", "/", "--chdir", kScratch, "--", kRunner});
  argv.insert(argv.end(), verb.begin(), verb.end());
  if (task) {
    add({"--confined"});
    if (saved) add({std::string("--saved=") + kSaved});
    if (!request.grants.working_dir.empty()) add({"--working-dir=" + request.grants.working_dir});
    if (cgroup == nullptr || !cgroup->limits_pids()) add({"--pids=" + std::to_string(options_.pids)});
    argv.insert(argv.end(), request.args.begin() + 1, request.args.end());  // [0] is the verb
  }
  facts.visible = {shown.begin(), shown.end()};
  if (request.program) facts.visible.insert(facts.visible.end(), kProgramFiles.begin(), kProgramFiles.end());
  facts.visible.insert(facts.visible.end(), kLoaderFiles.begin(), kLoaderFiles.end());
  facts.visible.insert(facts.visible.end(), {kScratch, "/freeride", "/proc", "/dev"});
  for (const auto& file : request.grants.data) facts.visible.push_back(file.target);
  for (const auto* more :
       {&options_.library_dirs, &request.grants.files, &request.grants.folders, &request.grants.devices})
    facts.visible.insert(facts.visible.end(), more->begin(), more->end());
  auto child = spawn(plan);
  if (!child.ok()) return child.error();
  facts.text = describe(cgroup.get(), facts, identity.uid, request.grants.network);
  child->hold = std::make_unique<BubblewrapHold>(std::move(facts), std::move(cgroup));
  return child;
}

// What bubblewrap could not do, and what helps.
std::string advice(const std::string& text) {
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (says("become a user of its own")) {
    return "this user namespace lacks the task's user number: name another with --first-task-uid, or start the worker "
           "as an ordinary user";
  }
  if (says("Permission denied") && says("Can't find source path")) {
    return "the tasks' user cannot reach that path: put it (--state-dir, --runner) where every user may, or start the "
           "worker with CAP_SYS_ADMIN";
  }
  if (says("Can't mount proc")) {
    return "this container hides parts of /proc: start it with --security-opt systempaths=unconfined, or mount the "
           "host's /proc anywhere in it (docs/kubernetes.md)";
  }
  // bubblewrap's words and ours for the same: the kernel changes what a mount passes on only at a mount point.
  if (says("Invalid argument") && (says("make its mounts private") || says("Failed to make / slave"))) {
    return "/ must be a mount point (not a plain chroot): enter it with pivot_root, systemd-nspawn or a container";
  }
  if (says("namespace") || says("uid map") || says("Operation not permitted") || says("No space left")) {
    return "user namespaces are needed: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000, "
           "kernel.apparmor_restrict_unprivileged_userns=0; in Docker --security-opt seccomp=unconfined";
  }
  return "repair that";
}

Status Bubblewrap::check() {
  std::array<int, 2> output{};
  if (pipe2(output.data(), O_CLOEXEC) != 0) return errno_error("cannot make a pipe", errno);
  const Fd output_read(output[0]);
  Fd output_write(output[1]);
  SandboxRequest request;
  request.output_fd = output_write.get();
  const auto failed = [](const std::string& what, const std::string& hint) {
    return Error{Code::kPermission, "the bubblewrap sandbox does not work here: " + what,
                 hint + "; for development only: --sandbox none"};
  };
  auto child = start(request, {"trial"}, false);
  if (!child.ok())
    return failed(child.error().message, child.error().hint.empty() ? "repair that" : child.error().hint);
  output_write.reset();
  pollfd ended{child->pidfd.get(), POLLIN, 0};
  const bool in_time = poll(&ended, 1, kTrialMs) == 1;
  if (!in_time) syscall(SYS_pidfd_send_signal, child->pidfd.get(), SIGKILL, nullptr, 0);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child->pid), &info, WEXITED);
  forget(request.task);
  std::array<char, 2048> text{};
  const ssize_t got = read(output_read.get(), text.data(), text.size());
  std::string said(text.data(), got > 0 ? static_cast<size_t>(got) : 0);
  while (!said.empty() && said.back() == '\n') said.pop_back();
  std::replace(said.begin(), said.end(), '\n', ' ');
  if (!in_time)
    return failed("a trial did not end within " + std::to_string(kTrialMs / 1000) + " s",
                  "look at the load of this host");
  if (const std::string level = "error "; said.rfind(level, 0) == 0) said.erase(0, level.size());  // a log line's
  if (info.si_code != CLD_EXITED || info.si_status != 0) {
    if (said.empty()) said = "a trial ended with status " + std::to_string(info.si_status);
    return failed(said, advice(said));
  }
  spdlog::info("sandbox: {}", child->hold->describe());
  if (cgroups_.version() == 0) {
    spdlog::warn("side tasks have rlimits, no control group: {}; see docs/operators/sandbox.md", cgroups_.why_not());
  }
  if (!root_)
    spdlog::warn(
        "this worker is no root, so its side tasks share its uid {}: files of that user are hidden from them by mounts "
        "only",
        geteuid());
  return {};
}

}  // namespace

std::string find_bwrap(const std::string& given) {
  if (!given.empty()) return access(given.c_str(), X_OK) == 0 ? given : "";
  const auto installed = find_on_path("bwrap");
  return (installed.empty() ? find_beside("bwrap") : installed).string();  // beside: a packed tree's
}

Result<std::unique_ptr<Sandbox>> make_bubblewrap(const SandboxOptions& options) {
  const std::string bwrap = find_bwrap(options.bwrap);
  if (bwrap.empty()) {
    return Error{Code::kNotFound,
                 options.bwrap.empty() ? "bwrap is not on the PATH, nor beside freeride-worker"
                                       : "there is no program " + options.bwrap,
                 "install bubblewrap, or for development only: --sandbox none"};
  }
  return std::unique_ptr<Sandbox>(std::make_unique<Bubblewrap>(options, bwrap));
}

}  // namespace freeride::worker
