// Cgroups: ceilings of side tasks by control groups of version 1 or 2, whichever this host has and this program may
// write.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "freeride/base/fd.hpp"
#include "freeride/base/result.hpp"
#include "sandbox/cpu_priority.hpp"

namespace freeride::worker {

/// Ceilings of one sandbox. 0 or empty: none.
struct Ceilings {
  int64_t memory_bytes = 0;  ///< of everything in it, its scratch folder included
  int64_t pids = 0;          ///< processes and threads
  double cpus = 0;           ///< CPU time a second, in cores
  std::vector<int> cores;
  CpuPriority priority = CpuPriority::kOrdinary;
};

/// The control groups of one sandbox, one folder (version 2) or one for each controller (version 1). The destructor
/// kills who is still in them and removes them. Main thread.
class TaskCgroup {
 public:
  ~TaskCgroup();
  TaskCgroup(const TaskCgroup&) = delete;
  TaskCgroup& operator=(const TaskCgroup&) = delete;

  /// Open `cgroup.procs` files: a process that writes "0" into each has joined. Between fork and exec.
  std::vector<int> join_fds() const;
  /// Its folders, by the paths at which programs look for them ("/sys/fs/cgroup", "/sys/fs/cgroup/memory").
  std::map<std::string, std::filesystem::path> shown_at() const;
  bool limits_memory() const { return memory_; }
  bool limits_pids() const { return pids_; }
  /// What holds, for people: "cgroup v1: memory 64 MiB, pids 64, …".
  const std::string& text() const { return text_; }

  /// How often the kernel has killed for want of memory in it, and refused a process or thread.
  int64_t oom_kills() const;
  int64_t pids_refused() const;
  /// The most memory it has held, bytes; 0: not known, as in version 2 before Linux 5.19.
  int64_t peak_bytes() const;
  void kill_all() const;

 private:
  friend class Cgroups;
  TaskCgroup() = default;
  const std::filesystem::path* folder(const char* controller) const;

  bool v2_ = false, memory_ = false, pids_ = false;
  std::map<std::string, std::filesystem::path> folders_;  ///< by controller; all the same in version 2
  std::vector<Fd> procs_;
  std::string text_;
};

/// Finds out once what there is. Main thread.
class Cgroups {
 public:
  /// `name`: of this worker, unique on the host ("cpu-0"). Never fails: where groups cannot be used, why_not() says
  /// why. Removes groups that a worker of this name has left behind. `mountinfo` and `self` are files of /proc, others
  /// in tests; `make_group` is mkdir(), which in tests also makes the files that the kernel would.
  using MakeGroup = int (*)(const char* path, mode_t mode);
  explicit Cgroups(const std::string& name, const std::filesystem::path& mountinfo = "/proc/self/mountinfo",
                   const std::filesystem::path& self = "/proc/self/cgroup", MakeGroup make_group = ::mkdir);

  /// 1, 2, or 0 for none.
  int version() const { return version_; }
  const std::string& why_not() const { return why_not_; }
  bool has(const std::string& controller) const { return bases_.count(controller) != 0; }
  /// The folder in which groups with this controller are made; empty: it cannot be used.
  std::filesystem::path base(const std::string& controller) const {
    const auto it = bases_.find(controller);
    return it == bases_.end() ? std::filesystem::path() : it->second;
  }

  /// A new group with these ceilings. Errors: what could not be written. A ceiling whose controller is not there is
  /// left out (see text()).
  Result<std::unique_ptr<TaskCgroup>> make(const Ceilings& ceilings);

 private:
  void find_v1(const std::filesystem::path& mountinfo, const std::filesystem::path& self);
  void find_v2(const std::filesystem::path& mountinfo, const std::filesystem::path& self);
  void sweep() const;

  const MakeGroup make_group_;
  std::string prefix_;
  int version_ = 0;
  std::string why_not_;
  std::map<std::string, std::filesystem::path> bases_;  ///< by controller: the folder in which groups are made
  uint64_t made_ = 0;
};

}  // namespace freeride::worker
