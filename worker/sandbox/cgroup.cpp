#include "sandbox/cgroup.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "freeride/base/log.hpp"

namespace freeride::worker {
namespace {

namespace fs = std::filesystem;

// What the supervisor, bubblewrap and page tables need beside the task.
constexpr int64_t kMemorySlackBytes = 16ll << 20;
constexpr int64_t kPidsSlack = 6;
constexpr const char* kGiven = "/cgroup";  // docs/operators/containers.md
constexpr int64_t kCpuPeriodUs = 100'000;
const std::array<const char*, 4> kControllers{"memory", "pids", "cpu", "cpuset"};

Status write_file(const fs::path& file, const std::string& text) {
  const Fd fd(open(file.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_error("cannot open " + file.string(), errno);
  if (write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return errno_error("cannot write '" + text + "' to " + file.string(), errno);
  }
  return {};
}

std::string read_file(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  std::getline(in, text, '\0');
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// "key value" lines; -1: no such key.
int64_t keyed(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  for (int64_t value = 0; in >> word >> value;) {
    if (word == key) return value;
  }
  return -1;
}

std::vector<pid_t> members(const fs::path& folder) {
  std::ifstream in(folder / "cgroup.procs");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; in >> pid;) pids.push_back(pid);
  return pids;
}

struct Mount {
  std::string root, point, type, options;
};

std::vector<Mount> mounts(const fs::path& mountinfo) {
  std::vector<Mount> found;
  std::ifstream in(mountinfo);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    Mount mount;
    words >> word >> word >> word >> mount.root >> mount.point;
    while (words >> word && word != "-") {
    }
    words >> mount.type >> word >> mount.options;
    if (mount.type != "cgroup" && mount.type != "cgroup2") continue;
    // What a container is given for its tasks goes before what the engine shows of its own.
    found.insert(mount.point.rfind(kGiven, 0) == 0 ? found.begin() : found.end(), mount);
  }
  return found;
}

std::set<std::string> split(const std::string& text, char by) {
  std::set<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, by);) parts.insert(part);
  return parts;
}

// This process's group in the hierarchy that has `controller` ("" for version 2).
std::string own_path(const fs::path& self, const std::string& controller) {
  std::ifstream in(self);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? names.empty() : split(names, ',').count(controller) != 0) return line.substr(second + 1);
  }
  return "/";
}

// Where that group is under a mount, which in a container may show a part of the hierarchy only.
fs::path folder_of(const Mount& mount, const std::string& path) {
  if (mount.point.rfind(kGiven, 0) == 0) return mount.point;
  std::string below = path;
  if (mount.root != "/" && below.rfind(mount.root, 0) == 0) below = below.substr(mount.root.size());
  fs::path folder = mount.point;
  if (below.size() > 1 && below.find("..") == std::string::npos) folder += below[0] == '/' ? below : "/" + below;
  std::error_code ignored;
  return fs::is_directory(folder, ignored) ? folder : fs::path(mount.point);
}

std::string mib(int64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

std::string list(const std::vector<int>& cores) {
  std::string text;
  for (const int core : cores) text += (text.empty() ? "" : ",") + std::to_string(core);
  return text;
}

// Groups go once their last process has been reaped; that takes a moment.
void remove_group(const fs::path& folder) {
  for (int tries = 0; tries < 200; ++tries) {
    if (rmdir(folder.c_str()) == 0 || errno == ENOENT) return;
    if (errno != EBUSY) break;
    for (const pid_t pid : members(folder)) {
      if (pid > 1 && pid != getpid()) kill(pid, SIGKILL);
    }
    usleep(5000);
  }
  spdlog::warn("cannot remove the control group {}", folder.string());
}

// The processes' namespace of this worker: the same number in another one is another process.
ino_t own_namespace() {
  struct stat about {};
  return stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

bool is_young(const fs::path& folder) {
  constexpr auto kYoung = std::chrono::seconds(10);  // its maker may not have put a process into it yet
  std::error_code error;
  const auto made = fs::last_write_time(folder, error);
  return error || fs::file_time_type::clock::now() - made < kYoung;
}

}  // namespace

Cgroups::Cgroups(const std::string& name, const fs::path& mountinfo, const fs::path& self, MakeGroup make_group)
    : make_group_(make_group), prefix_("freeride-" + name + "-") {
  find_v1(mountinfo, self);
  if (version_ == 0) find_v2(mountinfo, self);
  sweep();
}

void Cgroups::find_v1(const fs::path& mountinfo, const fs::path& self) {
  for (const Mount& mount : mounts(mountinfo)) {
    if (mount.type != "cgroup") continue;
    const auto options = split(mount.options, ',');
    for (const char* controller : kControllers) {
      if (options.count(controller) == 0 || bases_.count(controller) != 0) continue;
      const fs::path folder = folder_of(mount, own_path(self, controller));
      const fs::path trial = folder / (prefix_ + "trial");
      if (mkdir(trial.c_str(), 0755) != 0 && errno != EEXIST) {
        why_not_ = "cannot make a control group in " + folder.string() + ": " + std::generic_category().message(errno);
        continue;
      }
      rmdir(trial.c_str());
      bases_[controller] = folder;
    }
  }
  if (!bases_.empty()) version_ = 1;
}

void Cgroups::find_v2(const fs::path& mountinfo, const fs::path& self) {
  for (const Mount& mount : mounts(mountinfo)) {
    if (mount.type != "cgroup2") continue;
    const fs::path folder = folder_of(mount, own_path(self, ""));
    const auto there = split(read_file(folder / "cgroup.controllers"), ' ');
    std::string wanted;
    for (const char* controller : kControllers) {
      if (there.count(controller) != 0) wanted += (wanted.empty() ? "+" : " +") + std::string(controller);
    }
    if (wanted.empty()) {
      if (why_not_.empty()) why_not_ = "no controllers are delegated to " + folder.string();
      continue;
    }
    if (!write_file(folder / "cgroup.subtree_control", wanted).ok()) {
      // A group with processes cannot have controlled groups below it, so this process moves into one of its own;
      // others there are not ours to move.
      const auto inside = members(folder);
      if (inside.size() == 1 && inside[0] == getpid()) {
        const fs::path own = folder / "freeride-worker";
        mkdir(own.c_str(), 0755);
        if (auto moved = write_file(own / "cgroup.procs", "0"); !moved.ok()) {
          why_not_ = moved.error().message;
          continue;
        }
      }
      if (auto enabled = write_file(folder / "cgroup.subtree_control", wanted); !enabled.ok()) {
        why_not_ = enabled.error().message + " (is the worker alone in a delegated group?)";
        continue;
      }
    }
    for (const char* controller : kControllers) {
      if (there.count(controller) != 0) bases_[controller] = folder;
    }
    version_ = 2;
    return;
  }
  if (why_not_.empty()) why_not_ = "no control groups are mounted";
}

// Those of workers that are gone. Whether a worker of another namespace lives cannot be seen from here: of its groups
// only those go in which nobody is.
void Cgroups::sweep() const {
  std::set<fs::path> folders;
  for (const auto& [controller, base] : bases_) folders.insert(base);
  for (const fs::path& base : folders) {
    std::error_code error;
    std::vector<fs::path> old;
    for (const auto& entry : fs::directory_iterator(base, error)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(prefix_, 0) != 0) continue;
      const pid_t owner = std::atoi(name.c_str() + prefix_.size());
      const size_t end = name.rfind('.');
      const bool ours = end == std::string::npos || name.substr(end + 1) == std::to_string(own_namespace());
      // One before may have had this number, as in a container.
      if ((!ours || owner == getpid()) && !is_young(entry.path())) rmdir(entry.path().c_str());
      if (!ours || owner == getpid() || owner <= 0 || kill(owner, 0) == 0) continue;
      old.push_back(entry.path());
    }
    for (const fs::path& folder : old) remove_group(folder);
  }
}

Result<std::unique_ptr<TaskCgroup>> Cgroups::make(const Ceilings& ceilings) {
  std::unique_ptr<TaskCgroup> made(new TaskCgroup());
  made->v2_ = version_ == 2;
  const std::string name =
      prefix_ + std::to_string(getpid()) + "-" + std::to_string(++made_) + "." + std::to_string(own_namespace());
  const bool cpu = ceilings.cpus > 0 || ceilings.priority != CpuPriority::kOrdinary;
  const std::map<std::string, bool> has_ceiling{{"cpuset", !ceilings.cores.empty()},
                                                {"memory", ceilings.memory_bytes > 0},
                                                {"pids", ceilings.pids > 0},
                                                {"cpu", cpu}};
  const auto is_set = [&](const auto& base) { return has_ceiling.at(base.first); };
  // To join a group of version 1 takes some milliseconds for each controller. One is needed to know who is in it.
  const bool all = made->v2_ || std::none_of(bases_.begin(), bases_.end(), is_set);
  std::set<fs::path> folders;
  for (const auto& [controller, base] : bases_) {
    if (!all && !has_ceiling.at(controller)) continue;
    const fs::path folder = base / name;
    if (folders.insert(folder).second && make_group_(folder.c_str(), 0755) != 0) {
      return errno_error("cannot make the control group " + folder.string(), errno);
    }
    made->folders_[controller] = folder;
  }
  std::string& text = made->text_;
  const auto set = [&](const char* controller, const char* file, const std::string& value) -> Status {
    return write_file(made->folders_[controller] / file, value);
  };
  const auto say = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };

  if (has("cpuset") && !ceilings.cores.empty()) {
    const std::string cores = list(ceilings.cores);
    // Version 1 wants both before anybody joins.
    if (!made->v2_) {
      if (auto s = set("cpuset", "cpuset.mems", read_file(bases_["cpuset"] / "cpuset.mems")); !s.ok()) return s.error();
    }
    if (auto s = set("cpuset", "cpuset.cpus", cores); !s.ok()) return s.error();
    say("cores " + cores);
  }
  if (ceilings.memory_bytes > 0 && has("memory")) {
    const std::string bytes = std::to_string(ceilings.memory_bytes + kMemorySlackBytes);
    if (auto s = set("memory", made->v2_ ? "memory.max" : "memory.limit_in_bytes", bytes); !s.ok()) return s.error();
    // No swap, where there is a file for it: swapping takes the training's disk.
    const fs::path swap = made->folders_["memory"] / (made->v2_ ? "memory.swap.max" : "memory.memsw.limit_in_bytes");
    std::error_code ignored;
    if (fs::exists(swap, ignored)) {
      if (auto s = write_file(swap, made->v2_ ? "0" : bytes); !s.ok()) return s.error();
    }
    made->memory_ = true;
    say("memory " + mib(ceilings.memory_bytes));
  }
  if (ceilings.pids > 0 && has("pids")) {
    if (auto s = set("pids", "pids.max", std::to_string(ceilings.pids + kPidsSlack)); !s.ok()) return s.error();
    made->pids_ = true;
    say("pids " + std::to_string(ceilings.pids));
  }
  if (has("cpu")) {
    if (ceilings.cpus > 0) {
      const std::string quota = std::to_string(static_cast<int64_t>(ceilings.cpus * kCpuPeriodUs));
      auto s = made->v2_ ? set("cpu", "cpu.max", quota + " " + std::to_string(kCpuPeriodUs))
                         : set("cpu", "cpu.cfs_quota_us", quota);
      if (!s.ok()) return s.error();
      std::ostringstream cpus;
      cpus << ceilings.cpus;
      say("CPU " + cpus.str() + " cores");
    }
    if (ceilings.priority == CpuPriority::kTenth) {
      auto s = made->v2_ ? set("cpu", "cpu.weight", "10") : set("cpu", "cpu.shares", "102");
      if (!s.ok()) return s.error();
      say("CPU a tenth of the usual weight");
    }
    if (ceilings.priority == CpuPriority::kIdle) {
      // Idle, since Linux 5.15; before, the least weight there is.
      if (!set("cpu", "cpu.idle", "1").ok()) {
        auto s = made->v2_ ? set("cpu", "cpu.weight", "1") : set("cpu", "cpu.shares", "2");
        if (!s.ok()) return s.error();
      }
      say("CPU when idle");
    }
  }
  text = "cgroup v" + std::to_string(version_) + ": " + (text.empty() ? "no ceilings" : text);
  for (const fs::path& folder : folders) {
    Fd fd(open((folder / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd.valid()) return errno_error("cannot open " + (folder / "cgroup.procs").string(), errno);
    made->procs_.push_back(std::move(fd));
  }
  return made;
}

TaskCgroup::~TaskCgroup() {
  std::set<fs::path> folders;
  for (const auto& [controller, folder] : folders_) folders.insert(folder);
  for (const fs::path& folder : folders) remove_group(folder);
}

std::vector<int> TaskCgroup::join_fds() const {
  std::vector<int> fds;
  for (const Fd& fd : procs_) fds.push_back(fd.get());
  return fds;
}

std::map<std::string, fs::path> TaskCgroup::shown_at() const {
  const std::string root = "/sys/fs/cgroup";
  if (v2_ && !folders_.empty()) return {{root, folders_.begin()->second}};
  std::map<std::string, fs::path> shown;
  for (const auto& [controller, folder] : folders_) {
    // The JVM believes in no limit where it does not find both.
    shown[root + "/" + (controller == "cpu" ? "cpu,cpuacct" : controller)] = folder;
  }
  return shown;
}

const fs::path* TaskCgroup::folder(const char* controller) const {
  const auto it = folders_.find(controller);
  return it == folders_.end() ? nullptr : &it->second;
}

int64_t TaskCgroup::oom_kills() const {
  const fs::path* memory = folder("memory");
  return memory == nullptr
             ? 0
             : std::max<int64_t>(0, keyed(*memory / (v2_ ? "memory.events" : "memory.oom_control"), "oom_kill"));
}

int64_t TaskCgroup::pids_refused() const {
  const fs::path* pids = folder("pids");
  return pids == nullptr ? 0 : std::max<int64_t>(0, keyed(*pids / "pids.events", "max"));
}

int64_t TaskCgroup::peak_bytes() const {
  const fs::path* memory = folder("memory");
  if (memory == nullptr) return 0;
  return std::atoll(read_file(*memory / (v2_ ? "memory.peak" : "memory.max_usage_in_bytes")).c_str());
}

void TaskCgroup::kill_all() const {
  std::set<fs::path> folders;
  for (const auto& [controller, folder] : folders_) folders.insert(folder);
  for (const fs::path& folder : folders) {
    for (const pid_t pid : members(folder)) {
      if (pid > 1 && pid != getpid()) kill(pid, SIGKILL);
    }
  }
}

}  // namespace freeride::worker
